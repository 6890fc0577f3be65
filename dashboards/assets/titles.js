// Captions of figures in as many lines as their width needs; pages of the app and reports draw with it.
window.forerunTitle = function (layout, width) {
  "use strict";
  var title = layout.title || {};
  var found = /^(<b>.*?<\/b><br><span[^>]*>)(.*)(<\/span>)$/.exec(title.text || "");
  if (!found || !width) { return layout; }
  var letters = Math.max(24, Math.floor((width - 44) / 6.3)), lines = [], parts = found[2].split("<br>");
  parts.forEach(function (part) {
    var line = "";
    part.split(" ").forEach(function (word) {
      var longer = line ? line + " " + word : word;
      if (line && longer.length > letters) { lines.push(line); line = word; } else { line = longer; }
    });
    lines.push(line);
  });
  var top = (layout.margin && layout.margin.t) || layout.template.layout.margin.t;
  layout.title = Object.assign({}, title, { text: found[1] + lines.join("<br>") + found[3] });
  layout.margin = Object.assign({}, layout.margin, { t: top + 16 * (lines.length - parts.length) });
  return layout;
};
