package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// referenceCommand prints docs/cli.md (make docs).
func referenceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reference", Short: "Print the command-line reference as Markdown", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), reference(cmd.Root()))
			return err
		},
	}
}

// reference is every command with its flags.
func reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Command-line reference

Generated from the code by ` + "`make docs`" + `; a test fails when it differs.

` + exitCodes + `

Verbs that look or change something ask the admin address of a running Lockstep: any instance, whether it mirrors the
partitions or not. Verbs that change something are stored in the ledger as what is wanted; the instance that owns a
partition does it, also when the command line, or the instance that was asked, is gone. Running the same verb again
waits for the same goal.

| command | what it does |
|---|---|
`)
	var all []*cobra.Command
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			if sub.Runnable() {
				all = append(all, sub)
			}
			walk(sub)
		}
	}
	walk(root)
	for _, c := range all {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
	}
	for _, c := range all {
		long := c.Long
		if long == "" {
			long = c.Short + "."
		}
		long = strings.TrimSpace(strings.ReplaceAll(long, exitCodes, ""))
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| flag | default | what |\n|---|---|---|\n", c.CommandPath(), long)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Hidden {
				return
			}
			name := "`--" + f.Name + "`"
			if f.Shorthand != "" {
				name = "`-" + f.Shorthand + "`, " + name
			}
			def := ""
			if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
				def = "`" + f.DefValue + "`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, def, f.Usage)
		})
	}
	return b.String()
}
