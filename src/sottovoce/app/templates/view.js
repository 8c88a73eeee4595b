const seen = new Map(), lost = document.getElementById("lost");
let heard = new Date();
async function look() {
  try {
    const answer = await fetch("parts", { cache: "no-store" });
    if (!answer.ok) throw new Error();
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of made.body.children) {
      const old = document.getElementById(part.id);
      if (old && seen.get(part.id) !== part.innerHTML) {
        const open = [...old.querySelectorAll("details")].map((each) => each.open);
        old.innerHTML = part.innerHTML;
        old.querySelectorAll("details").forEach((each, place) => { each.open = open[place] || false; });
        seen.set(part.id, part.innerHTML);
      }
    }
    document.title = document.getElementById("state").textContent + " - " + document.querySelector("h1").textContent;
    heard = new Date();
    lost.hidden = true;
  } catch {
    lost.textContent = "No answer since " + heard.toISOString().slice(11, 19) +
      " UTC: the program has ended or was stopped. Below is what it said last.";
    lost.hidden = false;
  }
  setTimeout(look, document.hidden ? 5000 : 1000);
}
setTimeout(look, 500);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
