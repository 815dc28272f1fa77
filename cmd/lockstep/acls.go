package main

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

func aclsCommand() *cobra.Command {
	var to target
	var mirror string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "acls",
		Short: "Show what copying a mirror's ACLs would change now: a dry run",
		Long: `Compare the source's ACLs, as far as mirrors[].acls selects them, with the destination's, and print what would be added
and removed now, and what is held back until a failover. Nothing is changed. It works whether acls.enabled is set or not.

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if mirror == "" {
				return &usageError{errors.New("name the mirror: --mirror")}
			}
			c, err := to.client(cmd)
			if err != nil {
				return err
			}
			var got control.ACLs
			if err := c.Get(cmd.Context(), "/v1/acls", url.Values{"mirror": {mirror}}, &got); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			var rows []table.Row
			for _, x := range []struct {
				what  string
				rules []string
			}{{"add", got.Add}, {"remove", got.Remove}, {"held back", got.HeldBack}} {
				for _, r := range x.rules {
					rows = append(rows, table.Row{x.what, r})
				}
			}
			if len(rows) > 0 {
				if err := printTable(cmd.OutOrStdout(), table.Row{"", "rule"}, rows, 2); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d to add, %d to remove, %d held back, %d in step.\n", len(got.Add), len(got.Remove), len(got.HeldBack), got.InStep)
			switch {
			case !got.Enabled:
				fmt.Fprintln(cmd.OutOrStdout(), "Nothing is done about it: acls.enabled is false.")
			case got.DryRun:
				fmt.Fprintln(cmd.OutOrStdout(), "Nothing is done about it: acls.dry_run is true.")
			}
			if got.NotUnderstood > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "lockstep: %d rules are of kinds that this release doesn't know, and left alone\n", got.NotUnderstood)
			}
			if got.SourceError != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "lockstep: compared with what the source had before: %s\n", got.SourceError)
			}
			return nil
		},
	}
	to.flags(cmd)
	cmd.Flags().StringVarP(&mirror, "mirror", "m", "", "the mirror")
	jsonFlag(cmd, &asJSON)
	return cmd
}
