from dashboards.report import write_report as write_report
from dashboards.results import result_figure as result_figure
