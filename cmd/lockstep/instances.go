package main

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/plural"
)

func instancesCommand() *cobra.Command {
	var to target
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "instances",
		Short: "List the Locksteps in front of the destination, and what waits for whom",
		Long:  "List the registered instances: lease, how much of the ledger they have not taken in, and the partitions that wait for them.\n\n" + exitCodes,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client(cmd)
			if err != nil {
				return err
			}
			var got struct {
				Instances []control.Instance `json:"instances"`
			}
			if err := c.Get(cmd.Context(), "/v1/instances", nil, &got); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			rows := make([]table.Row, 0, len(got.Instances))
			for _, i := range got.Instances {
				lease := "until " + utc(i.Lease)
				if !i.Live {
					lease = "over since " + utc(i.Lease)
				}
				awaited := strings.Join(i.Awaited, ", ")
				if more := i.AwaitedCount - len(i.Awaited); more > 0 {
					awaited += fmt.Sprintf(" and %d more", more)
				}
				rows = append(rows, table.Row{i.ID, i.Version, i.Address, lease, behind(i.Behind), awaited})
			}
			return printTable(cmd.OutOrStdout(), table.Row{"instance", "version", "admin address", "lease", "not taken in", "waited for by"}, rows, 2, 6)
		},
	}
	to.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// behind is how much of the ledger an instance has not taken in.
func behind(records int64) string {
	switch {
	case records < 0:
		return "all of it"
	case records == 0:
		return "nothing"
	}
	return plural.Of(records, "record")
}
