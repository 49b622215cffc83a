import uig_faults_a, uig_faults_b, uig_sound_a, uig_sound_b
