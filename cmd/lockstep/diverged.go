package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/diverged"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

func divergedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diverged",
		Short: "List or export what cuts have left behind",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(divergedListCommand(), divergedExportCommand())
	return cmd
}

const divergedLong = `What a cut took out of a mirrored log (records that the other side never had at a failback, or that the source lost by an
unclean election) is not deleted: it lies in the destination's topic, hidden, until retention removes it. This reads the
destination's topic and ledger directly, with the configuration's credentials; no Lockstep has to run. Records of aborted
transactions are left out.`

// divergedFlags choose what is read.
type divergedFlags struct {
	config     string
	sel        selection
	partitions []int
}

func (d *divergedFlags) flags(cmd *cobra.Command) {
	configFlag(cmd, &d.config)
	d.sel.flags(cmd, false)
	cmd.Flags().IntSliceVarP(&d.partitions, "partition", "p", nil, "only these partitions")
	cmd.MarkFlagsMutuallyExclusive("topic", "regex")
}

// each scans the selected partitions in order.
func (d *divergedFlags) each(ctx context.Context, f func(p *ledger.Partition, s *diverged.Partition) error) error {
	match := func(string) bool { return true }
	if d.sel.Regex != "" {
		re, err := regexp.Compile("^(?:" + d.sel.Regex + ")$")
		if err != nil {
			return &usageError{fmt.Errorf("--regex: %w", err)}
		}
		match = re.MatchString
	}
	c, err := config.Load(d.config)
	if err != nil {
		return err
	}
	opts, _, err := client.Destination(c.Destination)
	if err != nil {
		return err
	}
	all, err := readLedger(ctx, opts)
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("client for the destination: %w", err)
	}
	defer cl.Close()
	r := diverged.NewReader(cl)
	found := map[string]bool{}
	for _, p := range all {
		switch {
		case len(d.sel.Topics) > 0 && !slices.Contains(d.sel.Topics, p.Topic), !match(p.Topic):
			continue
		case d.sel.Mirror != "" && (p.Record == nil || p.Record.Mirror != d.sel.Mirror):
			continue
		}
		found[p.Topic] = true
		if len(d.partitions) > 0 && !slices.Contains(d.partitions, int(p.Partition)) {
			continue
		}
		s, err := r.Partition(ctx, p)
		if err != nil {
			return err
		}
		if err := f(p, s); err != nil {
			return err
		}
	}
	for _, t := range d.sel.Topics {
		if !found[t] {
			return fmt.Errorf("the ledger has no topic %s: `lockstep describe` shows those that are mirrored", t)
		}
	}
	return nil
}

// readLedger reads the ledger once, to its end.
func readLedger(ctx context.Context, opts []kgo.Opt) ([]*ledger.Partition, error) {
	v, err := ledger.ReadOnce(ctx, ledger.ViewOptions{Client: opts, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("read the destination's ledger: %w", err)
	}
	return v.All(), nil
}

func divergedListCommand() *cobra.Command {
	var d divergedFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the ranges of records that cuts have left behind",
		Long:  divergedLong + "\n\nOne row for each leader epoch; holes inside a range are possible.\n\n" + exitCodes,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			type row struct {
				Topic     string `json:"topic"`
				Partition int32  `json:"partition"`
				diverged.Range
			}
			rows, unknown := []row{}, 0
			err := d.each(cmd.Context(), func(p *ledger.Partition, s *diverged.Partition) error {
				rs, err := s.Ranges(cmd.Context())
				for _, r := range rs {
					rows = append(rows, row{p.Topic, p.Partition, r})
				}
				unknown += s.Unknown()
				return err
			})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"ranges": rows, "unknown_batches": unknown})
			}
			if len(rows) == 0 && unknown == 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "No cut has left records behind.")
				return err
			}
			trs := make([]table.Row, 0, len(rows))
			for _, r := range rows {
				trs = append(trs, table.Row{r.Topic, r.Partition, r.First, r.Last, r.Epoch, r.Records, r.Origin, timestamp(r.MinTime), timestamp(r.MaxTime)})
			}
			if err := printTable(cmd.OutOrStdout(), table.Row{"topic", "partition", "first offset", "last offset", "epoch", "records", "origin", "earliest", "latest"}, trs); err != nil {
				return err
			}
			if unknown > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "lockstep: %d more batches lie there that were written past the proxy: nobody was shown an offset for them\n", unknown)
			}
			return nil
		},
	}
	d.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func divergedExportCommand() *cobra.Command {
	var d divergedFlags
	var output string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Export the records that cuts have left behind, as JSON lines",
		Long: divergedLong + `

One JSON object for each record: topic, partition, offset and leader epoch as they were shown, timestamp in milliseconds,
key, value and headers [{key, value}] in base64 (null where they are null), origin (mirrored or native).

` + exitCodes,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if len(d.sel.Topics) == 0 && d.sel.Regex == "" {
				return &usageError{errors.New("name what to export: --topic or --regex")}
			}
			out := cmd.OutOrStdout()
			if output != "" {
				f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return fmt.Errorf("--output: %w", err)
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				out = f
			}
			return d.export(cmd.Context(), out)
		},
	}
	d.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write, which may not exist yet; default: standard output")
	return cmd
}

func (d *divergedFlags) export(ctx context.Context, to io.Writer) error {
	out := bufio.NewWriterSize(to, 1<<16)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	err := d.each(ctx, func(p *ledger.Partition, s *diverged.Partition) error {
		return s.Each(ctx, func(r diverged.Record) error {
			return e.Encode(struct {
				Topic     string `json:"topic"`
				Partition int32  `json:"partition"`
				diverged.Record
			}{p.Topic, p.Partition, r})
		})
	})
	return errors.Join(err, out.Flush())
}
