// Shows times as the reader's clock has them, counts down what expires, and takes the
// buttons away when it is over. The server's clock decides: seconds are counted from when
// the page came.
(() => {
  const begun = new WeakMap();
  const words = (s) => s < 60 ? `${s} second${s === 1 ? "" : "s"} left`
    : s < 7200 ? `${Math.floor(s / 60)} minute${s < 120 ? "" : "s"} left`
    : `${Math.floor(s / 3600)} hours left`;
  const left = (at) => {
    const given = at.dataset.left;
    let from = begun.get(at);
    if (!from || from.given !== given) begun.set(at, from = { given, at: performance.now() });
    return Math.floor(given - (performance.now() - from.at) / 1000);
  };
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const tick = () => {
    for (const at of document.querySelectorAll("time:not([data-left], [title])")) {
      at.title = at.textContent;
      at.textContent = local.format(new Date(at.dateTime));
    }
    for (const at of document.querySelectorAll("time[data-left]")) {
      const seconds = left(at);
      const text = seconds > 0 ? words(seconds) : "over";
      if (at.textContent !== text) at.textContent = text;
      at.classList.toggle("soon", seconds < 60);
      const standing = seconds <= 0 && at.closest("#standing");
      if (standing) {
        if (!begun.get(at).told) standing.dispatchEvent(new Event("over")); // the page asks what has become of it
        begun.get(at).told = true;
        for (const b of document.querySelectorAll("#decision form[action$='/vote'] button")) b.disabled = true;
      }
    }
  };
  tick();
  document.addEventListener("htmx:after:swap", tick);
  setInterval(tick, 1000);
})();
