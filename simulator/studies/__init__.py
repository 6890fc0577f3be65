"""Studies: many simulated runs that answer one question."""

from simulator.studies.compare import CompareOptions, compare, variants_from_files, variants_of
from simulator.studies.study import PointResult, Study, StudyResult
from simulator.studies.study_file import Range, StudyFile, Variant, load_study

__all__ = [
    "CompareOptions",
    "PointResult",
    "Range",
    "Study",
    "StudyFile",
    "StudyResult",
    "Variant",
    "compare",
    "load_study",
    "variants_from_files",
    "variants_of",
]
