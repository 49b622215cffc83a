import texts_faults_a, texts_faults_b, texts_faults_c, texts_sound_a, texts_sound_b, texts_sound_c  # noqa: E401, F401
