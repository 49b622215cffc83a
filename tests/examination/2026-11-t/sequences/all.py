import importlib.util
for name in ("tsq_faults_a", "tsq_faults_b", "tsq_faults_c", "tsq_sound_a", "tsq_sound_b"):
    if importlib.util.find_spec(name):
        importlib.import_module(name)
