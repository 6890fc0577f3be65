(function () {
  "use strict";
  var places = window.dash_clientside = window.dash_clientside || {};
  function narrow() { return window.innerWidth < 560; }

  places.forerun = {
    scheme: function (choice) {
      var dark = choice === "auto" ? window.matchMedia("(prefers-color-scheme: dark)").matches : choice === "dark";
      return [dark ? "dark" : "light", dark ? "dark" : "light"];
    },
    draw: function (spec, scheme, templates) {
      if (!spec) { return [{ data: [], layout: {} }, { display: "none" }]; }
      var layout = Object.assign({}, spec.layout, { template: templates[scheme || "light"], autosize: true });
      var data = spec.data;
      delete layout.width;
      delete layout.height;
      if (narrow()) {
        var title = layout.title || {};
        var text = (title.text || "").replace(" · basis", "<br>basis");
        var lines = text.split("<br>").length;
        layout.title = Object.assign({}, title, { text: text });
        layout.margin = Object.assign({ r: 10 }, layout.margin);
        layout.margin.t = Math.max(layout.margin.t || 0, 38 + 18 * lines);
        data = data.map(function (trace) {
          return trace.type === "heatmap" ? Object.assign({}, trace, { texttemplate: "", showscale: false }) : trace;
        });
      }
      return [{ data: data, layout: layout }, {}];
    },
    address: function (values, steps) {
      var ids = places.callback_context.inputs_list[0];
      if (!ids || !ids.length) { return places.no_update; }
      var query = new URLSearchParams();
      ids.forEach(function (entry) {
        if (entry.value !== null && entry.value !== undefined && entry.value !== "") {
          var known = steps[entry.id.page + "/" + entry.id.name];
          query.set(entry.id.name, String(known ? known[entry.value] : entry.value));
        }
      });
      var address = window.location.pathname + "?" + query.toString();
      window.history.replaceState(window.history.state, "", address);
      return address;
    },
    words: function (place, steps, unit) {
      var id = places.callback_context.outputs_list.id;
      var value = (steps[id.page + "/" + id.name] || [])[place];
      if (value === undefined) { return places.no_update; }
      return (value >= 1024 && value % 1024 === 0 ? value / 1024 + "k" : String(value)) + (unit ? " " + unit : "");
    },
    picture: function (png, svg) {
      var asked = places.callback_context.triggered_id;
      if (!asked || (!png && !svg)) { return places.no_update; }
      var holder = Array.prototype.find.call(document.querySelectorAll("[id*='\"kind\":\"graph\"']"), function (element) {
        var id = JSON.parse(element.id);
        return id.page === asked.page && id.name === asked.name;
      });
      var graph = holder && (holder.classList.contains("js-plotly-plot") ? holder : holder.querySelector(".js-plotly-plot"));
      if (graph) {
        var box = graph.getBoundingClientRect();
        window.Plotly.downloadImage(graph, {
          format: asked.kind === "export-svg" ? "svg" : "png", filename: asked.page + "-" + asked.name,
          width: Math.round(box.width), height: Math.round(box.height), scale: asked.kind === "export-svg" ? 1 : 2
        });
      }
      return places.no_update;
    }
  };
})();
