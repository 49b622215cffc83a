"""Imports all cases of this examination."""
import rnn_faults_a
import rnn_faults_b
import rnn_healthy_a
import rnn_healthy_b
