package report

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours that people with a colour deficiency can tell apart (Okabe and Ito).
func colour(i int) color.Color {
	all := []color.RGBA{
		{0x00, 0x72, 0xb2, 0xff},
		{0xe6, 0x9f, 0x00, 0xff},
		{0x00, 0x9e, 0x73, 0xff},
		{0xd5, 0x5e, 0x00, 0xff},
		{0xcc, 0x79, 0xa7, 0xff},
		{0x56, 0xb4, 0xe9, 0xff},
		{0x99, 0x99, 0x99, 0xff},
	}
	return all[i%len(all)]
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
	p.BackgroundColor = color.White
	var err error
	height := vg.Points(320)
	if s.Axis != "" {
		err = s.lines(p)
	} else {
		height, err = s.bars(p)
	}
	if err != nil {
		return "", fmt.Errorf("chart of %s: %w", s.Name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("chart of %s: %w", s.Name, err)
	}
	name := s.Name + ".svg"
	if err := p.Save(vg.Points(640), height, filepath.Join(dir, name)); err != nil {
		return "", fmt.Errorf("chart of %s: %w", s.Name, err)
	}
	return name, nil
}

// bars are medians, one for each peer and case, with a line from min to max.
func (s *Scenario) bars(p *plot.Plot) (vg.Length, error) {
	rows := s.rows()
	n := len(rows)
	names := make([]string, n)
	xys := make(plotter.XYs, n)
	errs := make(plotter.XErrors, n)
	peers := map[string]int{}
	for i, r := range rows {
		at := n - 1 - i // the first on top
		names[at] = r.peer
		if r.kase != "" {
			names[at] = r.kase + ": " + r.peer
		}
		// Viewers without the font that was measured with take a wider one.
		names[at] += strings.Repeat(" ", 2+len(names[at])/3)
		if _, ok := peers[r.peer]; !ok {
			peers[r.peer] = len(peers)
		}
		sp := SpreadOf(s.values(r, s.Chart))
		bar, err := plotter.NewBarChart(plotter.Values{sp.Median}, vg.Points(14))
		if err != nil {
			return 0, err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width = true, float64(at), 0
		bar.Color = colour(peers[r.peer])
		p.Add(bar)
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
	m := Metrics()[s.Chart]
	p.X.Label.Text = m.Title + " (median; line: min to max; " + map[bool]string{true: "less is better)", false: "more is better)"}[m.Smaller]
	for _, r := range rows { // the value behind each bar
		sp := SpreadOf(s.values(r, s.Chart))
		if sp.N == 0 {
			continue
		}
		at := n - 1
		for i := range rows {
			if rows[i] == r {
				at = n - 1 - i
			}
		}
		l, err := plotter.NewLabels(plotter.XYLabels{XYs: []plotter.XY{{X: sp.Max, Y: float64(at)}}, Labels: []string{number(sp.Median, m.Digits)}})
		if err != nil {
			return 0, err
		}
		l.TextStyle[0].Font.Variant = "Sans"
		l.Offset = vg.Point{X: vg.Points(5), Y: vg.Points(-4)}
		p.Add(l)
	}
	return vg.Points(90) + vg.Length(n)*vg.Points(22), nil
}

// lines have x on a logarithmic axis, one line for each peer.
func (s *Scenario) lines(p *plot.Plot) error {
	var peers []string
	for _, r := range s.rows() {
		if !strings.Contains("\x00"+strings.Join(peers, "\x00")+"\x00", "\x00"+r.peer+"\x00") {
			peers = append(peers, r.peer)
		}
	}
	for i, peer := range peers {
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
		line.Color, line.Width = colour(i), vg.Points(2)
		dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, colour(i), vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(peer, line, dots)
	}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(3), vg.Points(8)
	if p.X.Min > 0 {
		// With room at both sides; of a single point plot would make a range that reaches zero.
		p.X.Min, p.X.Max = p.X.Min/1.5, p.X.Max*1.5
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	p.X.Label.Text = s.Axis
	p.Y.Label.Text = Metrics()[s.Chart].Title
	p.Y.Min = 0
	p.Y.Max *= 1.25
	return nil
}
