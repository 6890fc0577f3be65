from traces.steps.read import FORMATS as FORMATS
from traces.steps.read import read_steps as read_steps
from traces.steps.table import COLUMNS as COLUMNS
from traces.steps.table import StepTable as StepTable
