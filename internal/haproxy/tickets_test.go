package haproxy

import (
	"testing"

	"qtls.dev/qtls/internal/model"
)

func TestWhatSharesTicketKeys(t *testing.T) {
	listener := func() model.Listener {
		return model.Listener{Name: "web", ClientAuthentication: &model.ClientAuthentication{Required: true, CAs: "a"}}
	}
	own := ticketScope(listener(), 3600)
	for _, c := range []struct {
		name     string
		change   func(*model.Listener)
		lifetime int
		same     bool
	}{
		{"the same listener", func(*model.Listener) {}, 3600, true},
		{"with other host names", func(l *model.Listener) { l.Hostnames = []model.Hostname{"other.example.com"} }, 3600, true},
		{"another listener", func(l *model.Listener) { l.Name = "other" }, 3600, false},
		{"one that requires no client certificate", func(l *model.Listener) { l.ClientAuthentication.Required = false }, 3600, false},
		{"one that asks for none", func(l *model.Listener) { l.ClientAuthentication = nil }, 3600, false},
		{"one that trusts others", func(l *model.Listener) { l.ClientAuthentication.CAs = "b" }, 3600, false},
		{"tickets for a shorter time", func(*model.Listener) {}, 3599, false},
		{"tickets for a longer time", func(*model.Listener) {}, 7200, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listener()
			c.change(&l)
			if got := ticketScope(l, c.lifetime); (got == own) != c.same {
				t.Errorf("scope %s, own %s, want the same: %v", got, own, c.same)
			}
		})
	}
}
