package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

func listCommand() *cobra.Command {
	var to target
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the mirrors of a running Lockstep",
		Long:  "List the mirrors: those of the configuration and those that the ledger has partitions of.\n\n" + exitCodes,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client(cmd)
			if err != nil {
				return err
			}
			var got struct {
				Mirrors []control.MirrorStatus `json:"mirrors"`
			}
			if err := c.Get(cmd.Context(), "/v1/mirrors", nil, &got); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			return printMirrors(cmd, got.Mirrors)
		},
	}
	to.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printMirrors(cmd *cobra.Command, ms []control.MirrorStatus) error {
	rows := make([]table.Row, 0, len(ms))
	for _, m := range ms {
		source := m.Source
		if source == "" {
			source = "cluster " + m.Cluster
		}
		var notes []string
		if m.SourceAway != nil {
			notes = append(notes, "the source is away since "+utc(*m.SourceAway)+": "+m.SourceError)
		}
		if m.Deleted {
			notes = append(notes, "deleted")
		}
		if !m.Declared {
			notes = append(notes, "not in this instance's configuration")
		}
		if m.UncleanLeaderElection {
			notes = append(notes, "unclean elections supported")
		}
		for _, id := range slices.Sorted(maps.Keys(m.ConfiguredDifferently)) {
			notes = append(notes, fmt.Sprintf("instance %s has other settings: %s", id, strings.Join(m.ConfiguredDifferently[id], ", ")))
		}
		rows = append(rows, table.Row{m.Name, source, m.Topics, m.Partitions, states(m.States), num(m.Lag), strings.Join(notes, "; ")})
	}
	return printTable(cmd.OutOrStdout(), table.Row{"mirror", "source", "topics", "partitions", "states", "lag", "notes"}, rows, 2, 7)
}

// states is "2 MIRRORING, 1 FAILED".
func states(m map[ledger.State]int) string {
	var out []string
	for _, s := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[s], s))
	}
	return strings.Join(out, ", ")
}
