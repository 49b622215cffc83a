import faults_a, faults_b, faults_c, sound_a, sound_b  # noqa: F401
