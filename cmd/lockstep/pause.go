package main

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func pauseCommand() *cobra.Command {
	return (&verb{}).command(control.Pause, "Pause mirroring; what is mirrored stays readable",
		"Pause mirroring. What is mirrored stays readable, clients can't write. Allowed only when every selected partition is MIRRORING.")
}
