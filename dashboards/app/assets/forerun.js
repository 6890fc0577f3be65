(function () {
  "use strict";
  var places = window.dash_clientside = window.dash_clientside || {};
  // The component library gives its file input no label, and no way to give it one.
  new MutationObserver(function () {
    document.querySelectorAll("input[type=file]:not([aria-label])").forEach(function (input) {
      input.setAttribute("aria-label", "File to upload");
    });
    document.querySelectorAll(".table[data-html]").forEach(fill);
  }).observe(document.documentElement, { childList: true, subtree: true, attributeFilter: ["data-html"] });
  // A table arrives as HTML, escaped where it was made; what was unfolded stays so when its numbers change.
  function fill(place) {
    if (place.filled === place.dataset.html) { return; }
    var unfolded = place.querySelector("details[open]") !== null;
    place.innerHTML = place.filled = place.dataset.html;
    place.querySelectorAll("details").forEach(function (rest) { rest.open = unfolded; });
    window.forerunTables(place);
  }
  var system = window.matchMedia("(prefers-color-scheme: dark)");
  var phone = window.matchMedia("(width < 560px)");

  places.forerun = {
    scheme: function (choice) {
      function look() { return (choice === "auto" ? system.matches : choice === "dark") ? "dark" : "light"; }
      system.onchange = function () {
        places.set_props("scheme", { data: look() });
        places.set_props("theme", { forceColorScheme: look() });
      };
      phone.onchange = function () { places.set_props("scheme", { data: look() }); };  // figures are drawn anew
      return [look(), look()];
    },
    draw: function (spec, scheme, templates) {
      var id = places.callback_context.outputs_list[0].id;
      var card = document.getElementById(JSON.stringify({ kind: "card", name: id.name, page: id.page }));
      var figure = card && card.querySelector(".figure");
      var now = JSON.stringify([spec, scheme, phone.matches]);
      if (card && card.drawn === now) { return [places.no_update, places.no_update]; }
      if (card) { card.drawn = now; }
      if (!spec) { return [{ data: [], layout: {} }, { display: "none" }]; }
      var whole = window.forerunFigure(spec, templates[scheme || "light"]), layout = whole.layout, data = whole.data;
      delete layout.height;
      if (phone.matches) {
        layout.margin = Object.assign({ r: 20 }, layout.margin);
        data = data.map(function (trace) {
          if (trace.type !== "heatmap") { return trace; }
          return Object.assign({}, trace, { showscale: false, textfont: Object.assign({}, trace.textfont, { size: 9 }) });
        });
      }
      window.forerunTitle(layout, figure, data);
      return [{ data: data, layout: layout }, {}];
    },
    heading: function (path, names) {
      var name = names[path.replace(/\//g, "")];
      document.title = name ? name + " \u00b7 Forerun" : "Forerun";
      return places.no_update;
    },
    share: function (clicks) {
      if (!clicks) { return places.no_update; }
      if (navigator.clipboard) { navigator.clipboard.writeText(window.location.href); }
      return navigator.clipboard ? "Link copied" : "Copy the address above";
    },
    address: function (values) {
      var ids = places.callback_context.inputs_list[0];
      if (!ids || !ids.length) { return places.no_update; }
      var query = new URLSearchParams();
      ids.forEach(function (entry) {
        if (entry.value !== null && entry.value !== undefined && entry.value !== "") {
          query.set(entry.id.name, String(entry.value) || "-");
        }
      });
      var address = window.location.pathname + "?" + query.toString();
      window.history.replaceState(window.history.state, "", address);
      return address;
    },
    pair: function (value, place, known) {
      var id = places.callback_context.outputs_list[0].id;
      var about = known[id.page + "/" + id.name];
      var trigger = places.callback_context.triggered_id;
      if (!about) { return [places.no_update, places.no_update]; }
      var drawn = trigger && trigger.kind === "slider";
      if (drawn) { value = about.stops[place]; }
      var text = String(value).trim();
      var typed = /^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$/.test(text) ? text.replace(/,/g, "") : text;
      value = typed === "" ? NaN : Number(typed);
      if (!isFinite(value)) { return [places.no_update, places.no_update]; }
      var near = 0;
      about.stops.forEach(function (stop, index) {
        if (Math.abs(stop - value) < Math.abs(about.stops[near] - value)) { near = index; }
      });
      var words = value + (about.unit ? " " + about.unit : "");
      window.setTimeout(function () {
        document.querySelectorAll('[role="slider"][aria-label="' + about.label + '"]').forEach(function (thumb) {
          thumb.setAttribute("aria-valuetext", words);
        });
      }, 0);
      return drawn ? [String(value), places.no_update] : [places.no_update, near === place ? places.no_update : near];
    },
    take: function (contents, names, largest, most) {
      if (!contents) { return [places.no_update, places.no_update]; }
      var limit = most === 1 ? "One file" : "At most " + most + " files";
      var refused = contents.length > most ? limit + " at a time: " + contents.length + " were given." : "";
      var letters = contents.reduce(function (sum, one) { return sum + one.length; }, 0);
      if (!refused && letters > largest - 4096) {
        refused = names[0] + ": larger than what may be sent from here; put it into a folder that forerun dash serves.";
      }
      var files = names.map(function (name, index) { return { name: name, contents: contents[index] }; });
      if (!refused) { return [{ files: files, at: Date.now() }, null]; }
      var alert = { color: "red", variant: "light", radius: "md", className: "message", children: refused };
      return [places.no_update, { namespace: "dash_mantine_components", type: "Alert", props: alert }];
    },
    picture: function (png, svg) {
      var trigger = places.callback_context.triggered_id;
      if (!trigger || (!png && !svg)) { return places.no_update; }
      var holder = Array.prototype.find.call(document.querySelectorAll("[id*='\"kind\":\"graph\"']"), function (element) {
        var id = JSON.parse(element.id);
        return id.page === trigger.page && id.name === trigger.name;
      });
      var graph = holder && (holder.classList.contains("js-plotly-plot") ? holder : holder.querySelector(".js-plotly-plot"));
      if (graph) {
        var box = graph.getBoundingClientRect();
        window.Plotly.downloadImage(graph, {
          format: trigger.kind === "export-svg" ? "svg" : "png", filename: trigger.page + "-" + trigger.name,
          width: Math.round(box.width), height: Math.round(box.height), scale: trigger.kind === "export-svg" ? 1 : 2
        });
      }
      return places.no_update;
    }
  };
})();
