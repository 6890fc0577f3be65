// Captions of figures in as many lines as their width needs; pages of the app and reports draw with it.
(function () {
  "use strict";
  function fitted(whole, width) {
    var match = /^(<b>.*?<\/b><br><span[^>]*>)(.*)(<\/span>)$/.exec(whole.text || "");
    if (!match || !width) { return { text: whole.text, top: whole.top }; }
    var letters = Math.max(24, Math.floor((width - 44) / 6.3)), lines = [], parts = match[2].split("<br>");
    parts.forEach(function (part) {
      var line = "";
      part.split(" ").forEach(function (word) {
        var longer = line ? line + " " + word : word;
        if (line && longer.length > letters) { lines.push(line); line = word; } else { line = longer; }
      });
      lines.push(line);
    });
    return { text: match[1] + lines.join("<br>") + match[3], top: whole.top + 16 * (lines.length - parts.length) };
  }
  window.forerunTitle = function (layout, width) {
    var top = (layout.margin && layout.margin.t) || layout.template.layout.margin.t;
    var whole = { text: (layout.title || {}).text, top: top }, now = fitted(whole, width);
    layout.title = Object.assign({}, layout.title, { text: now.text });
    layout.margin = Object.assign({}, layout.margin, { t: now.top });
    layout.meta = Object.assign({}, layout.meta, { whole: whole });
    return layout;
  };
  // A window made narrower or wider: the captions of what is drawn take the lines that they need now.
  var waiting = 0;
  window.addEventListener("resize", function () {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(function () {
      document.querySelectorAll(".js-plotly-plot").forEach(function (graph) {
        var whole = graph.layout && graph.layout.meta && graph.layout.meta.whole;
        var now = whole && fitted(whole, graph.getBoundingClientRect().width);
        if (now && now.text !== graph.layout.title.text) {
          window.Plotly.relayout(graph, { "title.text": now.text, "margin.t": now.top });
        }
      });
    }, 200);
  });
})();
