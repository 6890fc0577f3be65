(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var templates = JSON.parse(document.getElementById("templates").textContent);
  var packed = document.getElementById("plotly").textContent;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  function layoutOf(figure, width) {
    var layout = Object.assign({}, figure.layout, { template: dark.matches ? templates.dark : templates.light });
    delete layout.width;
    layout.autosize = true;
    return window.forerunTitle(layout, width);
  }
  function draw() {
    Object.keys(figures).forEach(function (id) {
      var place = document.getElementById(id);
      Plotly.react(place, figures[id].data, layoutOf(figures[id], place.getBoundingClientRect().width), config);
    });
  }
  function unpacked(text) {
    var bytes = Uint8Array.from(atob(text), function (letter) { return letter.charCodeAt(0); });
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  function copied(button, text) {
    button.textContent = "Copied";
    window.setTimeout(function () { button.textContent = "Copy"; }, 1500);
    if (navigator.clipboard) { return navigator.clipboard.writeText(text); }
    var area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  document.querySelectorAll("button.copy").forEach(function (button) {
    button.addEventListener("click", function () { copied(button, button.closest(".command").querySelector("pre").textContent); });
  });
  if (packed) {
    unpacked(packed).then(function (code) {
      var script = document.createElement("script");
      script.textContent = code;
      document.head.append(script);
      draw();
      dark.addEventListener("change", draw);
    });
  }
})();
