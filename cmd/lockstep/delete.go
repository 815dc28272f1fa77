package main

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func deleteCommand() *cobra.Command {
	return (&verb{}).command(control.Delete, "Delete a mirror whose partitions are all STOPPED",
		`Delete a mirror whose partitions are all STOPPED: nothing is mirrored by it any more, new topics included. Its partitions
stay as they are, readable and writable, and the ledger keeps their records: a later mirror in either direction needs them.
Remove it from the configuration too. To take it back, start its topics.`)
}
