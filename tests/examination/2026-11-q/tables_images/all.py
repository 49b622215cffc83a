import tiq_faults_img, tiq_faults_more, tiq_faults_tab, tiq_sound_a, tiq_sound_b  # noqa
