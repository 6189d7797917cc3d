const root = document.documentElement;
root.classList.add("js");
document.getElementById("theme").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};
for (const button of document.querySelectorAll(".copy")) {
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "press Ctrl-C";
    }
  };
}
