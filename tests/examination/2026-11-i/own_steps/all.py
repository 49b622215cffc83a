import own_faults_a, own_faults_b, own_faults_c, own_sound_a, own_sound_b, own_sound_c  # noqa: E401, F401
