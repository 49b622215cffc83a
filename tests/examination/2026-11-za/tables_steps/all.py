"""All cases on tables, science and scripts with their own step."""

import importlib

for _name in ("ats_faults_a", "ats_faults_b", "ats_sound_a", "ats_sound_b"):
    importlib.import_module(_name)
