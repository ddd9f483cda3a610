(() => {
  const tip = document.getElementById("tip");
  // The pictures carry titles for readers without scripts; with one they would show twice.
  document.querySelectorAll("svg .tip > title").forEach((title) => {
    title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove();
  });
  const show = (target, x, y) => {
    tip.textContent = target.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18) + "px";
  };
  const hide = () => { tip.hidden = true; };
  document.addEventListener("mousemove", (event) => {
    const target = event.target.closest(".tip");
    if (target) show(target, event.clientX, event.clientY); else hide();
  });
  document.addEventListener("focusin", (event) => {
    const target = event.target.closest(".tip");
    if (!target) return;
    const box = target.getBoundingClientRect();
    show(target, box.left, box.bottom);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { passive: true, capture: true });
})();
