from dashboards.report import write_report as write_report
