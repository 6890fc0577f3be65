// For pages of the app and reports: captions of figures in as many lines as their width needs, tables as cards where
// they do not fit, and definitions of terms on touch screens.
(function () {
  "use strict";
  function fitted(whole, width) {
    var match = /^<b>(.*?)<\/b><br>(<span[^>]*>)(.*)(<\/span>)$/.exec(whole.text || "");
    if (!match || !width) { return { text: whole.text, top: whole.top }; }
    var title = broken([match[1]], Math.max(18, Math.floor((width - 44) / 9.5))), parts = match[3].split("<br>");
    var lines = broken(parts, Math.max(24, Math.floor((width - 44) / 6.3)));
    return {
      text: "<b>" + title.join("<br>") + "</b><br>" + match[2] + lines.join("<br>") + match[4],
      top: whole.top + 16 * (lines.length - parts.length) + 21 * (title.length - 1)
    };
  }
  function broken(parts, letters) {
    var lines = [];
    parts.forEach(function (part) {
      var line = "";
      part.split(" ").forEach(function (word) {
        var longer = line ? line + " " + word : word;
        if (line && longer.length > letters) { lines.push(line); line = word; } else { line = longer; }
      });
      lines.push(line);
    });
    return lines;
  }
  function seen(place) {
    var box = place.closest(".figure-scroll, .scroll"), width = place.getBoundingClientRect().width;
    return box ? Math.min(width, box.clientWidth) : width;
  }
  // On a narrow screen long names stand over their points, not beside them, where they would leave no room.
  function named(data, layout, width) {
    var axis = layout.yaxis || {}, names = axis.ticktext || [], places = axis.tickvals;
    var rows = data.every(function (trace) { return trace.type === "scatter" || !trace.type; });
    if (rows && !axis.ticktext) {
      data.forEach(function (trace) { names = names.concat(Array.isArray(trace.y) ? trace.y : []); });
      names = places = names.filter(function (name, index) { return names.indexOf(name) === index; });
    }
    var long = names.some(function (name) { return typeof name === "string" && name.length > 15; });
    if (!rows || !long || !width || width > 560) { return; }
    layout.yaxis = Object.assign({}, axis, { showticklabels: false, ticks: "", automargin: false });
    layout.margin = Object.assign({}, layout.margin, { l: 12 });
    layout.annotations = (layout.annotations || []).concat(names.map(function (name, index) {
      return { text: name, x: 0, xref: "paper", xanchor: "left", y: places[index], yshift: 13, showarrow: false, font: { size: 11 } };
    }));
  }
  // A figure for a template: colours that are dim on its background are replaced by those that the template names.
  window.forerunFigure = function (spec, template) {
    var lighter = template.layout.meta || {}, text = JSON.stringify({ data: spec.data, layout: spec.layout });
    Object.keys(lighter).forEach(function (colour) { text = text.split(colour).join(lighter[colour]); });
    var figure = JSON.parse(text);
    figure.layout.template = template;
    figure.layout.autosize = true;
    delete figure.layout.width;
    return figure;
  };
  window.forerunTitle = function (layout, place, data) {
    named(data || [], layout, place && seen(place));
    var top = (layout.margin && layout.margin.t) || layout.template.layout.margin.t;
    var whole = { text: (layout.title || {}).text, top: top }, now = fitted(whole, place ? seen(place) : 0);
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
        var now = whole && fitted(whole, seen(graph));
        if (now && now.text !== graph.layout.title.text) {
          window.Plotly.relayout(graph, { "title.text": now.text, "margin.t": now.top });
        }
      });
    }, 200);
  });
  // A table that its place would cut becomes cards, one for each row, every figure beside its heading.
  var places = new ResizeObserver(function (entries) {
    var tables = entries.map(function (entry) { return entry.target.querySelector("table:not(.pairs)"); });
    tables = tables.filter(function (table) { return table && table.fitted !== table.parentElement.clientWidth; });
    tables.forEach(function (table) { table.classList.remove("as-cards"); });
    tables.map(function (table) {
      table.fitted = table.parentElement.clientWidth;
      return table.parentElement.scrollWidth > table.fitted + 1;
    }).forEach(function (cut, index) { if (cut) { asCards(tables[index]); } });
  });
  var FIRST_CARDS = 5;
  function asCards(table) {
    var heads = table.querySelectorAll("thead :is(th, td)");
    table.classList.add("as-cards");
    if (!heads.length || table.labelled) { return; }
    table.labelled = true;
    if (table.tBodies[0].rows.length > FIRST_CARDS + 1) { folded(table); }
    table.querySelectorAll("tbody tr").forEach(function (row) {
      Array.from(row.cells).forEach(function (cell, index) {
        var named = !index && /[a-z]/i.test(cell.textContent);  // a number by itself needs its heading
        if (named || !heads[index].textContent) { return; }
        var label = document.createElement("span");  // a copy, which keeps the definition of its term
        label.className = "label";
        label.append.apply(label, Array.from(heads[index].cloneNode(true).childNodes));
        cell.classList.toggle("empty", !cell.textContent);
        cell.prepend(label);
      });
    });
  }
  // Cards take many screens of a phone: the first few, then a button for all.
  function folded(table) {
    var all = document.createElement("button");
    all.type = "button";
    all.className = "all-cards";
    all.textContent = "All " + table.tBodies[0].rows.length + " rows";
    all.addEventListener("click", function () { table.classList.remove("folded"); all.remove(); });
    table.classList.add("folded");
    table.after(all);
  }
  window.forerunTables = function (within) {
    within.querySelectorAll(".scroll").forEach(function (place) { if (place.querySelector("table")) { places.observe(place); } });
  };
  document.addEventListener("DOMContentLoaded", function () { window.forerunTables(document); });
  // Figures over one clock share the crosshair and the time range.
  function clock(graph) { return graph.layout && graph.layout.meta && graph.layout.meta.clock; }
  var leading = false;
  function follow(graph) {
    function others(act) {
      if (leading) { return; }
      leading = true;
      var all = Array.from(document.querySelectorAll(".js-plotly-plot"));
      all.filter(function (one) { return one !== graph && one.offsetParent && clock(one) === clock(graph); }).forEach(act);
      leading = false;
    }
    function axes(one) { return Object.keys(one._fullLayout).filter(function (name) { return /^xaxis\d*$/.test(name); }); }
    graph.on("plotly_hover", function (event) {
      others(function (one) { window.Plotly.Fx.hover(one, { xval: event.points[0].x }, Object.keys(one._fullLayout._plots)[0]); });
    });
    graph.on("plotly_unhover", function () { others(function (one) { window.Plotly.Fx.unhover(one); }); });
    graph.on("plotly_relayout", function (event) {
      var name = axes(graph).filter(function (axis) { return event[axis + ".range[0]"] !== undefined || event[axis + ".autorange"]; })[0];
      if (!name) { return; }
      others(function (one) {
        var change = {};
        axes(one).forEach(function (axis) {
          if (event[name + ".autorange"]) { change[axis + ".autorange"] = true; }
          else { change[axis + ".range"] = [event[name + ".range[0]"], event[name + ".range[1]"]]; }
        });
        window.Plotly.relayout(one, change);
      });
    });
  }
  document.addEventListener("pointerover", function (event) {
    var graph = event.target.closest && event.target.closest(".js-plotly-plot");
    if (graph && clock(graph) && !graph.followed) { graph.followed = true; follow(graph); }
  });
  // A touch screen shows no titles: a tap on a term shows its definition until the next tap or scroll.
  var shown = null;
  function hide() { if (shown) { shown.remove(); shown = null; } }
  document.addEventListener("pointerup", function (event) {
    hide();
    var term = event.pointerType === "touch" && event.target.closest && event.target.closest("abbr[title]");
    if (!term) { return; }
    var box = term.getBoundingClientRect(), wide = Math.min(300, window.innerWidth - 16);
    shown = document.createElement("div");
    shown.setAttribute("role", "tooltip");
    shown.textContent = term.title;
    shown.style.cssText = "position:fixed;z-index:999;padding:8px 10px;border-radius:6px;font:14px/1.4 system-ui;" +
      "background:#1f2328;color:#fff;border:1px solid #57606a;box-sizing:border-box;width:" + wide + "px;top:" +
      (box.bottom + 6) + "px;left:" + Math.max(8, Math.min(box.left, window.innerWidth - wide - 8)) + "px";
    document.body.append(shown);
    var below = shown.getBoundingClientRect();
    if (below.bottom > window.innerHeight) { shown.style.top = box.top - below.height - 6 + "px"; }
  });
  window.addEventListener("scroll", hide, true);
})();
