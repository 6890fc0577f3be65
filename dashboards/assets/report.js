(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var templates = JSON.parse(document.getElementById("templates").textContent);
  var packed = document.getElementById("plotly").textContent;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  function draw(place) {
    var figure = window.forerunFigure(figures[place.id], dark.matches ? templates.dark : templates.light);
    Plotly.react(place, figure.data, window.forerunTitle(figure.layout, place, figure.data), config);
  }
  // One figure a frame, from the top: the first can be read while the others are drawn.
  function drawInTurn(places) {
    var waiting = places.slice();
    function next() {
      if (!waiting.length) { return; }
      draw(waiting.shift());
      requestAnimationFrame(function () { window.setTimeout(next); });
    }
    window.addEventListener("beforeprint", function () { waiting.splice(0).forEach(draw); });
    next();
  }
  function unpacked(text) {
    var letters = atob(text), bytes = new Uint8Array(letters.length);
    for (var i = 0; i < letters.length; i++) { bytes[i] = letters.charCodeAt(i); }
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
      // Nearly all of it is called while it loads: functions are compiled once, not first skimmed and then compiled.
      script.textContent = "//# allFunctionsCalledOnLoad\n" + code;
      document.head.append(script);
      var places = Array.from(document.querySelectorAll(".figure"));
      drawInTurn(places);
      dark.addEventListener("change", function () { places.forEach(draw); });
    });
  }
})();
