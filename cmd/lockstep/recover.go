package main

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func recoverCommand() *cobra.Command {
	return (&verb{}).command(control.Recover, "Try FAILED partitions again",
		"Try FAILED partitions again, once the cause is removed: they go back to the state before, and their retries are counted anew.\nPartitions that are not FAILED are left alone.")
}
