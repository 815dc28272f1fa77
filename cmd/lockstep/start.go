package main

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func startCommand() *cobra.Command {
	v := &verb{}
	cmd := v.command(control.Start, "Mirror STOPPED partitions from their source (again): failback",
		`Mirror STOPPED partitions from their source. Clients' writes here are refused from then on, what both sides share is kept,
the rest is cut (not deleted: lockstep diverged lists it), and mirroring goes on. Allowed only when every selected partition
is STOPPED. Waits until all are MIRRORING.`)
	cmd.Flags().BoolVar(&v.req.DiscardLocal, "discard-local", false, "drop local records when nothing says that the source shares any")
	return cmd
}
