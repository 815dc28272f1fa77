package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours that people with a colour deficiency can tell apart (Okabe and Ito).
func colour(i int) color.Color {
	all := []color.RGBA{{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff}}
	return all[i%len(all)]
}

// line is one of a chart: a curve, dots, or both.
type line struct {
	name string
	xys  plotter.XYs
	dots bool
}

// chart has logarithmic axes.
type chart struct {
	file, title, x, y string
	lines             []line
	limit             float64 // a horizontal line; 0: none
	linear            bool    // the y axis
}

func (c chart) draw(dir string) error {
	p := plot.New()
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		f.Variant = "Sans"
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
	p.Title.Padding, p.BackgroundColor = vg.Points(8), color.White
	p.Add(plotter.NewGrid())
	for i, l := range c.lines {
		if l.dots {
			s, err := plotter.NewScatter(l.xys)
			if err != nil {
				return fmt.Errorf("chart %s: %w", c.file, err)
			}
			s.Shape, s.Color, s.Radius = draw.CircleGlyph{}, colour(i/2), vg.Points(3.5)
			p.Add(s)
			if i == 1 {
				p.Legend.Add(l.name, s)
			}
			continue
		}
		at := i
		if len(c.lines) > 1 && c.lines[1].dots { // a curve and its dots have one colour
			at = i / 2
		}
		s, err := plotter.NewLine(l.xys)
		if err != nil {
			return fmt.Errorf("chart %s: %w", c.file, err)
		}
		s.Color, s.Width = colour(at), vg.Points(2)
		p.Add(s)
		p.Legend.Add(l.name, s)
	}
	if c.limit > 0 {
		s, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: c.limit}, {X: p.X.Max, Y: c.limit}})
		if err != nil {
			return fmt.Errorf("chart %s: %w", c.file, err)
		}
		s.Dashes, s.Width = []vg.Length{vg.Points(4), vg.Points(4)}, vg.Points(1)
		p.Add(s)
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	if c.linear {
		p.Y.Min = 0
		p.Y.Max *= 1.3
	} else {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Max *= 20 // room for the legend
	}
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*1.3
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(2), vg.Points(8)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("chart %s: %w", c.file, err)
	}
	if err := p.Save(vg.Points(640), vg.Points(360), filepath.Join(dir, c.file)); err != nil {
		return fmt.Errorf("chart %s: %w", c.file, err)
	}
	return nil
}

// curve is f over shares of the target's partitions.
func curve(name string, f func(Size) float64) line {
	l := line{name: name}
	for _, n := range []float64{1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000} {
		s := Target().Share(n / float64(Target().Partitions))
		l.xys = append(l.xys, plotter.XY{X: n, Y: f(s)})
	}
	return l
}

// charts of the page.
func charts(m *Model, pts []Point) []chart {
	at := func(f func(Load) float64) func(Size) float64 {
		return func(s Size) float64 { return f(m.Predict(s, Today())) }
	}
	check := chart{file: "check.svg", title: "Model (lines) and measured points (dots), one instance", x: "partitions", y: "count, or bytes"}
	for _, what := range []string{"bytes produced to the ledger", "bytes of the ledger that one instance reads", "bytes of a metadata answer"} {
		var model, dots plotter.XYs
		for _, pt := range pts {
			for _, c := range m.Compare(pt) {
				if c.What == what {
					model = append(model, plotter.XY{X: float64(pt.Partitions), Y: c.Predicted})
					dots = append(dots, plotter.XY{X: float64(pt.Partitions), Y: c.Measured})
				}
			}
		}
		check.lines = append(check.lines, line{name: what, xys: model}, line{name: "measured (dots, of all)", xys: dots, dots: true})
	}
	return []chart{
		check,
		{
			file: "ledger.svg", title: "Traffic of the ledger, 100 instances", x: "partitions, all busy", y: "MB/s",
			lines: []line{
				curve("read by all instances", at(func(l Load) float64 { return l.LedgerReads / 1e6 })),
				curve("written, before replication; as much read by each", at(func(l Load) float64 { return l.LedgerBytes / 1e6 })),
			},
		},
		{
			file: "cpu.svg", title: "CPU of one owner, 50 KB/s for each partition", x: "partitions, all busy, 50 owners", y: "cores", linear: true,
			lines: []line{
				curve("looks over the ledger (one goroutine)", at(func(l Load) float64 { return l.LookCores })),
				curve("reading the ledger", at(func(l Load) float64 { return l.LedgerCores })),
				curve("metadata", at(func(l Load) float64 { return l.MetadataCores })),
				curve("batches", at(func(l Load) float64 { return l.DataCores })),
			},
		},
		{
			file: "times.svg", title: "How long it lasts until all partitions of one owner are mirrored", x: "partitions", y: "seconds",
			limit: m.a.TakeOverS,
			lines: []line{
				curve("first start", at(func(l Load) float64 { return l.Start })),
				curve("take-over", at(func(l Load) float64 { return l.TakeOver })),
				curve("a new instance reads the ledger (one core)", at(func(l Load) float64 { return l.ReadInS })),
			},
		},
	}
}
