package ticketstore_test

import (
	"context"
	"testing"
	"time"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

const ring = "0123abcd"

func open(t testing.TB, c ticketstore.Connection) *ticketstore.Store {
	t.Helper()
	s, err := ticketstore.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func document(epoch uint64, content string) ticketstore.Document {
	return ticketstore.Document{Content: []byte(content), Epoch: epoch, ExpiresIn: time.Minute}
}

func publish(t testing.TB, s *ticketstore.Store, d ticketstore.Document) {
	t.Helper()
	if err := s.Publish(t.Context(), ring, d); err != nil {
		t.Fatal(err)
	}
}

func TestAgentsReadWhatTheOperatorPublishes(t *testing.T) {
	server := storetest.Start(t)
	operator, agent := open(t, server.Connection(embedded.Operator)), open(t, server.Connection(embedded.Agent))
	publish(t, operator, document(7, "sealed\nring"))
	d, err := agent.Read(context.Background(), ring)
	if err != nil {
		t.Fatal(err)
	}
	if string(d.Content) != "sealed\nring" || d.Epoch != 7 || d.ExpiresIn > time.Minute || d.ExpiresIn < 50*time.Second {
		t.Errorf("read %q, epoch %d, expires in %v", d.Content, d.Epoch, d.ExpiresIn)
	}
}
