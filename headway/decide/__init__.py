"""Options into a choice that is kept or rolled back, and the journal that records it. Pure."""
