package main

import (
	"encoding/json"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/check"
	"github.com/lockstep-kafka/lockstep/internal/config"
)

func checkCommand() *cobra.Command {
	var path string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Validate a configuration, connect to both clusters, and say what is missing",
		Long: `Validate a configuration, connect to both clusters, and say what was found and what is missing:
reachability, credentials, rights, versions, limits that would reject records, and whether the destination
keeps a stamp (one probe batch in a topic of its own). Exit code 1 when something must be changed first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(path)
			if err != nil {
				return err
			}
			findings := check.Run(cmd.Context(), c)
			out := cmd.OutOrStdout()
			if asJSON {
				e := json.NewEncoder(out)
				e.SetIndent("", "  ")
				if err := e.Encode(findings); err != nil {
					return err
				}
			} else {
				rows := make([]table.Row, 0, len(findings))
				for _, f := range findings {
					rows = append(rows, table.Row{f.Level, f.Where, f.What, f.Detail})
				}
				if err := printTable(out, table.Row{"", "where", "what", "found"}, rows, 4); err != nil {
					return err
				}
			}
			if check.Failed(findings) {
				return &saidError{code: 1}
			}
			return nil
		},
	}
	configFlag(cmd, &path)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
