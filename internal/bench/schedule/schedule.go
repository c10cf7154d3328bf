// Package schedule says when a benchmark is due, and which of those that are over
// are kept. It is pure.
package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // an image need not have the database

	"github.com/robfig/cron/v3"
)

// Schedule is a cron expression in a time zone.
type Schedule struct {
	cron cron.Schedule
	zone *time.Location
}

// Parse a cron expression, as CronJobs have it, and the name of a time zone; empty
// is UTC. Errors name the field of the spec that is wrong.
func Parse(expression, zone string) (Schedule, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return Schedule{}, fmt.Errorf("spec.timeZone: %q is no name of a time zone; give one of the database of IANA, such as Europe/Berlin", zone)
	}
	switch {
	case strings.Contains(expression, "TZ="):
		err = errors.New("it has a time zone; give that as spec.timeZone")
	case strings.HasPrefix(expression, "@every"):
		err = errors.New("@every has no times of its own")
	}
	s := Schedule{zone: location}
	if err == nil {
		s.cron, err = cron.ParseStandard(expression)
	}
	if err == nil && s.Next(time.Unix(0, 0)).IsZero() {
		err = errors.New("that day never comes")
	}
	if err != nil {
		return Schedule{}, fmt.Errorf(`spec.schedule: %q: %v; give five fields, minute, hour, day of the month, month and day of the week, as in "0 3 * * 1", or @hourly, @daily, @weekly, @monthly, @yearly`, expression, err)
	}
	return s, nil
}

// Next time after another.
func (s Schedule) Next(after time.Time) time.Time {
	next := s.cron.Next(after.In(s.zone))
	if next.IsZero() {
		return next
	}
	return next.UTC()
}

// Last time after one and not after another; false where there is none.
func (s Schedule) Last(after, until time.Time) (time.Time, bool) {
	// It looks back farther and farther, for there may be many.
	for back := time.Minute; ; back *= 2 {
		from := until.Add(-back)
		if from.Before(after) {
			from = after
		}
		last, found := time.Time{}, false
		for t := s.Next(from); !t.IsZero() && !t.After(until); t = s.Next(t) {
			last, found = t, true
		}
		if found || !from.After(after) {
			return last, found
		}
	}
}

// Name of the benchmark of a time: the same, whoever makes it.
func Name(schedule string, at time.Time) string {
	return fmt.Sprintf("%s-%d", schedule, at.Unix()/60)
}

// Run is a benchmark of a schedule.
type Run struct {
	Name string
	// At is the time that it was made for.
	At time.Time
	// Over: nothing more comes of it. Then Completed says that everything was
	// measured, and Good that it may be the measure of others.
	Over, Completed, Good bool
}

// State is all that decides what comes next.
type State struct {
	Now time.Time
	// Last is the time that a benchmark was last made for or, where there was none,
	// when the schedule was made.
	Last time.Time
	// Noted is what the status says of Last. What is not noted is not deleted: else
	// it could be made again.
	Noted     time.Time
	Suspended bool
	// Deadline is how late a benchmark may be made; 0: however late.
	Deadline time.Duration
	// Successful and Failed are how many are kept.
	Successful, Failed int
	// Previous: the last good one is compared with, and kept.
	Previous bool
	Runs     []Run
}

// Decision is what comes next.
type Decision struct {
	// Make a benchmark for this time, compared with that of the name Baseline; zero:
	// none now.
	Make     time.Time
	Baseline string
	// Active is the one that is not over.
	Active string
	// Delete these.
	Delete []string
	// Next is when one is due again; zero where none is, or one waits for Active.
	Next time.Time
	// Waiting is the time of one that is due and waits for Active.
	Waiting time.Time
}

// Decide what comes next.
func (s Schedule) Decide(o State) Decision {
	var d Decision
	runs := slices.Clone(o.Runs)
	slices.SortFunc(runs, func(a, b Run) int { return b.At.Compare(a.At) }) // the latest first
	last, good, successful, failed := o.Last, "", 0, 0
	var old []Run
	for _, r := range runs {
		if r.At.After(last) {
			last = r.At
		}
		switch {
		case !r.Over:
			d.Active = r.Name
			continue
		case r.Completed:
			if successful++; successful > o.Successful {
				old = append(old, r)
			}
		default:
			if failed++; failed > o.Failed {
				old = append(old, r)
			}
		}
		if r.Good && good == "" {
			good = r.Name
		}
	}
	for _, r := range slices.Backward(old) { // the oldest first
		if !r.At.After(o.Noted) && !(o.Previous && r.Name == good) {
			d.Delete = append(d.Delete, r.Name)
		}
	}
	if o.Suspended {
		return d
	}
	if o.Deadline > 0 && last.Before(o.Now.Add(-o.Deadline)) {
		last = o.Now.Add(-o.Deadline)
	}
	due, is := s.Last(last, o.Now)
	switch {
	case !is:
		d.Next = s.Next(o.Now)
	case d.Active != "":
		d.Waiting = due
	default:
		d.Make, d.Next = due, s.Next(o.Now)
		if o.Previous {
			d.Baseline = good
		}
	}
	return d
}
