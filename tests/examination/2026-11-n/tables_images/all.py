import ti_faults_a
import ti_faults_b
import ti_faults_c
import ti_sound_a
import ti_sound_b
