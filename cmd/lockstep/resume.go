package main

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func resumeCommand() *cobra.Command {
	return (&verb{}).command(control.Resume, "Go on with PAUSED partitions",
		"Go on with PAUSED partitions where they were, without aligning anew. Allowed only when every selected partition is PAUSED.")
}
