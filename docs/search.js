// Search in the side bar, without a server: the index comes as a script, so that it works from files too.
(function () {
  const form = document.getElementById("rtd-search-form");
  if (!form || typeof searchIndex === "undefined") return;
  const field = form.querySelector("input");
  const script = document.querySelector('script[src$="search/index.js"]');
  const root = script.getAttribute("src").replace("search/index.js", "");
  const found = document.createElement("ol");
  found.id = "found";
  found.setAttribute("aria-live", "polite");
  form.after(found);

  function score(entry, words) {
    const title = entry.title.toLowerCase(), text = entry.text.toLowerCase();
    let total = 0;
    for (const word of words) {
      if (!title.includes(word) && !text.includes(word)) return 0;
      total += (title.includes(word) ? 10 : 0) + Math.min(text.split(word).length - 1, 5);
    }
    return total;
  }

  function excerpt(text, word) {
    const place = Math.max(0, text.toLowerCase().indexOf(word) - 40);
    return (place > 0 ? "…" : "") + text.slice(place, place + 120) + "…";
  }

  function search() {
    const words = field.value.toLowerCase().split(/\s+/).filter((word) => word.length > 1);
    const ranked = words.length === 0 ? [] : searchIndex
      .map((entry) => [score(entry, words), entry]).filter(([points]) => points > 0)
      .sort((a, b) => b[0] - a[0]).slice(0, 12);
    found.replaceChildren(...ranked.map(([, entry]) => {
      const line = document.createElement("li"), link = document.createElement("a"), said = document.createElement("span");
      link.href = root + entry.location;
      link.textContent = entry.title;
      said.textContent = excerpt(entry.text, words[0]);
      line.append(link, said);
      return line;
    }));
    if (words.length > 0 && ranked.length === 0) found.textContent = "Nothing found.";
  }

  field.addEventListener("input", search);
  form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
})();
