// Package progress tells a person what a long command does and for how long it has done it.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	redrawEvery = time.Second
	repeatEvery = 20 * time.Second
)

// A Reporter writes steps: on a terminal a line that is redrawn with the time elapsed; elsewhere a
// line when a step begins, one every 20 seconds and one when it ends. Steps may run at once.
type Reporter struct {
	mu  sync.Mutex
	out io.Writer
	tty bool
	now func() time.Time
	// tick is replaced in tests.
	tick func(time.Duration) (<-chan time.Time, func())
	// running are the steps under way, oldest first.
	running []*step
}

type step struct {
	name  string
	start time.Time
	drawn time.Time
}

// New reports to f.
func New(f *os.File) *Reporter {
	return &Reporter{out: f, tty: term.IsTerminal(int(f.Fd())), now: time.Now, tick: ticker}
}

func ticker(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTicker(d)
	return t.C, t.Stop
}

// Step runs do as a step of this name and returns its error. Short steps (below a tenth of a
// second) leave no trace outside a terminal unless they fail.
func (r *Reporter) Step(name string, do func() error) error {
	s := &step{name: name, start: r.now()}
	r.begin(s)
	ticks, stop := r.tick(redrawEvery)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-ticks:
				r.redraw(s)
			}
		}
	})
	err := do()
	stop()
	close(done)
	wg.Wait()
	r.end(s, err)
	return err
}

// Say writes a line of its own.
func (r *Reporter) Say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
	fmt.Fprintf(r.out, format+"\n", args...)
	r.draw()
}

func (r *Reporter) begin(s *step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, s)
	s.drawn = s.start
	if r.tty {
		r.draw()
	}
}

func (r *Reporter) redraw(s *step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if r.tty {
		r.draw()
	} else if first := s.drawn.Equal(s.start); first || now.Sub(s.drawn) >= repeatEvery {
		fmt.Fprintf(r.out, "... %s (%s)\n", s.name, seconds(now.Sub(s.start)))
		s.drawn = now
	}
}

func (r *Reporter) end(s *step, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, other := range r.running {
		if other == s {
			r.running = append(r.running[:i], r.running[i+1:]...)
			break
		}
	}
	took := r.now().Sub(s.start)
	r.clear()
	switch {
	case err != nil:
		fmt.Fprintf(r.out, "  x %s (%s)\n", s.name, seconds(took))
	case r.tty || took >= 100*time.Millisecond:
		fmt.Fprintf(r.out, " ok %s (%s)\n", s.name, seconds(took))
	}
	r.draw()
}

// clear removes the terminal's live line.
func (r *Reporter) clear() {
	if r.tty {
		fmt.Fprint(r.out, "\r\x1b[K")
	}
}

// draw shows the steps under way in the terminal's live line.
func (r *Reporter) draw() {
	if !r.tty || len(r.running) == 0 {
		return
	}
	line := ""
	for i, s := range r.running {
		if i > 0 {
			line += ", "
		}
		line += fmt.Sprintf("%s (%s)", s.name, seconds(r.now().Sub(s.start)))
	}
	r.clear()
	fmt.Fprintf(r.out, "... %s", line)
}

// seconds shows a duration with as many digits as a person wants.
func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	if d < time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
}
