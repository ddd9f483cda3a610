"""Pictures and pages made from the journal and from results."""
