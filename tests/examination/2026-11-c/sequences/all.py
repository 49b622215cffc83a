"""Imports all cases; they are in program.FAULTS and program.SOUND."""
import faults_language  # noqa: F401
import faults_series  # noqa: F401
import faults_graphs_choices, faults_training  # noqa: F401,E401
import sound_ordinary, sound_unusual  # noqa: F401,E401
