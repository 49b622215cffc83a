"use strict";

// Buttons that copy the lines of code next to them; without a clipboard (a page from disk) the lines are selected.
document.addEventListener("click", async ({ target }) => {
  const button = target.closest("button.copy");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = document.execCommand("copy") ? "copied" : "selected";
  }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});
