(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var templates = JSON.parse(document.getElementById("templates").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  function layoutOf(figure) {
    var layout = Object.assign({}, figure.layout, { template: dark.matches ? templates.dark : templates.light });
    delete layout.width;
    layout.autosize = true;
    return layout;
  }
  function draw() {
    Object.keys(figures).forEach(function (id) {
      Plotly.react(document.getElementById(id), figures[id].data, layoutOf(figures[id]), config);
    });
  }
  draw();
  dark.addEventListener("change", draw);
})();
