package report

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// colour is a peer's in all charts; those that only show what is possible are
// grey. People with a colour deficiency can tell these apart (Okabe and Ito).
func (s *Scenario) colour(peer string) color.Color {
	all := []struct {
		peer string
		c    color.RGBA
	}{
		{Subject, color.RGBA{0x00, 0x72, 0xb2, 0xff}},
		{"kgo copier", color.RGBA{0xe6, 0x9f, 0x00, 0xff}},
		{"kgo copier, tuned", color.RGBA{0x00, 0x9e, 0x73, 0xff}},
		{"MirrorMaker 2, tuned", color.RGBA{0xd5, 0x5e, 0x00, 0xff}},
		{"MirrorMaker 2", color.RGBA{0xcc, 0x79, 0xa7, 0xff}},
		{"HAProxy", color.RGBA{0xe6, 0x9f, 0x00, 0xff}},
		{"", color.RGBA{0x56, 0xb4, 0xe9, 0xff}}, // all others
	}
	if slices.Contains(s.Limits, peer) {
		return color.RGBA{0xbb, 0xbb, 0xbb, 0xff}
	}
	for _, a := range all {
		if a.peer == peer {
			return a.c
		}
	}
	return all[len(all)-1].c
}

// Draw writes a scenario's chart as SVG to dir/name.svg, and returns the
// file's name; "" when it has none.
func (s *Scenario) Draw(dir string) (string, error) {
	if s.Chart == "" || !s.measured(s.Chart) {
		return "", nil
	}
	p := plot.New()
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		f.Variant = "Sans"
	}
	p.Title.Text = s.Title
	p.Title.Padding = vg.Points(8)
	p.X.Label.Padding, p.Y.Label.Padding = vg.Points(4), vg.Points(4)
	p.BackgroundColor = color.White
	var err error
	height := vg.Points(320)
	if s.Axis != "" {
		err = s.lines(p)
	} else {
		height, err = s.bars(p)
	}
	if err == nil {
		err = save(p, vg.Points(640), height, filepath.Join(dir, s.Name+".svg"))
	}
	if err != nil {
		return "", fmt.Errorf("chart of %s: %w", s.Name, err)
	}
	return s.Name + ".svg", nil
}

// save draws with a margin: viewers that don't have the font that was measured
// with take a wider one.
func save(p *plot.Plot, width, height vg.Length, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	canvas := vgsvg.New(width, height)
	all := draw.New(canvas)
	all.SetColor(p.BackgroundColor)
	all.Fill(all.Path())
	p.Draw(draw.Crop(all, vg.Points(12), vg.Points(-24), vg.Points(8), vg.Points(-8)))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	return errors.Join(err, f.Close())
}

// bars are medians, one for each peer and case, with a line from min to max.
func (s *Scenario) bars(p *plot.Plot) (vg.Length, error) {
	rows := slices.DeleteFunc(s.rows(), func(r row) bool { return len(s.values(r, s.Chart)) == 0 })
	n := len(rows)
	names := make([]string, n)
	xys := make(plotter.XYs, n)
	errs := make(plotter.XErrors, n)
	m := Metrics()[s.Chart]
	for i, r := range rows {
		at := n - 1 - i // the first on top
		names[at] = r.peer
		if slices.Contains(s.Limits, r.peer) {
			names[at] += " (limit)"
		}
		if r.kase != "" {
			names[at] = r.kase + ": " + names[at]
		}
		names[at] += strings.Repeat(" ", 2+len(names[at])/3) // room for a wider font
		sp := SpreadOf(s.values(r, s.Chart))
		bar, err := plotter.NewBarChart(plotter.Values{sp.Median}, vg.Points(14))
		if err != nil {
			return 0, err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width = true, float64(at), 0
		bar.Color = s.colour(r.peer)
		// The value stands behind the bar.
		label, err := plotter.NewLabels(plotter.XYLabels{XYs: []plotter.XY{{X: sp.Max, Y: float64(at)}}, Labels: []string{number(sp.Median, m.Digits)}})
		if err != nil {
			return 0, err
		}
		label.TextStyle[0].Font.Variant = "Sans"
		label.Offset = vg.Point{X: vg.Points(5), Y: vg.Points(-4)}
		p.Add(bar, label)
		xys[at] = plotter.XY{X: sp.Median, Y: float64(at)}
		errs[at].Low, errs[at].High = sp.Min-sp.Median, sp.Max-sp.Median
	}
	spread, err := plotter.NewXErrorBars(struct {
		plotter.XYer
		plotter.XErrorer
	}{xys, errs})
	if err != nil {
		return 0, err
	}
	p.Add(spread)
	p.NominalY(names...)
	p.X.Min = 0
	p.X.Max *= 1.12
	p.X.Label.Text = m.Title + " (median; line: min to max; " + map[bool]string{true: "less is better)", false: "more is better)"}[m.Smaller]
	return vg.Points(106) + vg.Length(n)*vg.Points(22), nil
}

// lines have x on a logarithmic axis, one line for each peer. What costs has a
// logarithmic y too, with a dashed line of linear growth beside it: what rises
// less steeply grows less than linear.
func (s *Scenario) lines(p *plot.Plot) error {
	var peers []string
	for _, r := range s.rows() {
		if !slices.Contains(peers, r.peer) {
			peers = append(peers, r.peer)
		}
	}
	m := Metrics()[s.Chart]
	low, high, both := math.Inf(1), 0.0, m.Smaller
	for _, peer := range peers {
		for _, q := range s.points(peer, s.Chart) {
			low, high, both = min(low, q.Y), max(high, q.Y), both && q.X > 0 && q.Y > 0
		}
	}
	// A decade at least, so that the slope of linear growth shows.
	low, high = min(low, high/10)/1.3, high*2.5
	p.Add(plotter.NewGrid())
	for _, peer := range peers {
		pts := s.points(peer, s.Chart)
		if len(pts) == 0 {
			continue
		}
		xys := make(plotter.XYs, len(pts))
		for j, q := range pts {
			xys[j] = plotter.XY{X: q.X, Y: q.Y}
		}
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, line.Width = s.colour(peer), vg.Points(2)
		dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, s.colour(peer), vg.Points(3)
		if peer == Subject && both && len(pts) > 1 {
			if err := linear(p, xys[0].X, xys[len(xys)-1], low); err != nil {
				return err
			}
		}
		p.Add(line, dots)
		p.Legend.Add(peer, line, dots)
	}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(3), vg.Points(8)
	if p.X.Min > 0 {
		// With room at both sides; of a single point plot would make a range that reaches zero.
		p.X.Min, p.X.Max = p.X.Min/1.5, p.X.Max*1.5
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	}
	p.X.Label.Text = s.Axis
	p.Y.Label.Text = m.Title
	if both {
		p.Y.Min, p.Y.Max = low, high
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	} else {
		p.Y.Min, p.Y.Max = 0, cmp.Or(high/2, 1)
	}
	return nil
}

// logTicks are at 1 to 9 of each decade, with a label at 1, and at 2 and 5 too
// where there are few decades.
func logTicks(low, high float64) (ticks []plot.Tick) {
	few := high/low < 1000
	for d := int(math.Floor(math.Log10(low))); d <= int(math.Ceil(math.Log10(high))); d++ {
		for n := 1; n < 10; n++ {
			t := plot.Tick{Value: float64(n) * math.Pow10(d)}
			if n == 1 || few && (n == 2 || n == 5) {
				t.Label = strconv.FormatFloat(t.Value, 'f', max(0, -d), 64)
			}
			if t.Value >= low && t.Value <= high {
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}

// linear draws how a line that ends where another does would go if it grew as x
// does, down to a height.
func linear(p *plot.Plot, from float64, end plotter.XY, floor float64) error {
	start := plotter.XY{X: from, Y: end.Y * from / end.X}
	if start.Y < floor {
		start = plotter.XY{X: end.X * floor / end.Y, Y: floor}
	}
	line, err := plotter.NewLine(plotter.XYs{start, end})
	if err != nil {
		return err
	}
	line.Color, line.Dashes = color.RGBA{0x99, 0x99, 0x99, 0xff}, []vg.Length{vg.Points(4), vg.Points(4)}
	p.Add(line)
	p.Legend.Add("linear growth", line)
	return nil
}
