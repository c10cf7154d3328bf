package redisoperator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
	"qtls.dev/qtls/internal/ticketstore/redisoperator/operatortest"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

const ring = "0123abcd"

func open(t *testing.T, c ticketstore.Connection) *ticketstore.Store {
	t.Helper()
	s, err := ticketstore.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func given(t *testing.T) (*redisoperator.Credentials, map[string][]byte) {
	t.Helper()
	c, _, err := redisoperator.Ensure(nil, []string{"store.shop.svc"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	data, err := c.ServerData()
	if err != nil {
		t.Fatal(err)
	}
	return c, data
}

func saying(got string, err error, want string) error {
	if err != nil || !strings.Contains(got, want) {
		return fmt.Errorf("%q, %w; want %q", got, err, want)
	}
	return nil
}

// publishes through one connection and reads through the other.
func publishes(t *testing.T, c *redisoperator.Credentials, at redisoperator.Location) {
	t.Helper()
	operator, agent := open(t, c.Connection(embedded.Operator, at)), open(t, c.Connection(embedded.Agent, at))
	d := ticketstore.Document{Content: []byte("sealed"), Epoch: 3, ExpiresIn: time.Minute}
	if err := operator.Publish(t.Context(), ring, d); err != nil {
		t.Fatal(err)
	}
	if got, err := agent.Read(t.Context(), ring); err != nil || string(got.Content) != "sealed" || got.Epoch != 3 {
		t.Errorf("the agent reads %+v, %v", got, err)
	}
	if err := agent.Publish(t.Context(), ring, d); !errors.Is(err, ticketstore.ErrPermission) {
		t.Errorf("the agent publishes: %v", err)
	}
}

// A primary and a replica, configured as the Redis Operator does with what it is
// given: they replicate with the certificate and the default user's password.
func TestAReplicationWithWhatItIsGiven(t *testing.T) {
	c, data := given(t)
	primary := operatortest.Start(t, data, redisoperator.Config)
	replica := operatortest.Start(t, data, redisoperator.Config, fmt.Sprintf("replicaof localhost %d", primary.Port))
	for _, s := range []*operatortest.Server{primary, replica} {
		if out, err := s.Do(data["password"], "PING"); saying(out, err, "PONG") != nil {
			t.Errorf("the probe says %q, %v", out, err)
		}
		if out, err := s.Do([]byte("hunter2"), "PING"); err == nil {
			t.Errorf("with another password: %q", out)
		}
		out, err := s.Do(data["password"], "CONFIG", "GET", "save")
		if err != nil || strings.ContainsAny(strings.TrimPrefix(out, "save"), "0123456789") {
			t.Errorf("it saves %q to disk, %v", out, err)
		}
	}
	eventually(t, "replication", func() error {
		out, err := replica.Do(data["password"], "INFO", "replication")
		return saying(out, err, "master_link_status:up")
	})
	publishes(t, c, redisoperator.Location{Mode: ticketstore.Members, Address: fmt.Sprintf("localhost:%d", primary.Port)})
	eventually(t, "the replica has the ring", func() error {
		out, err := replica.Do(data["password"], "EXISTS", embedded.Prefix+"ring:"+ring)
		return saying(out, err, "1")
	})
}

// The Sentinels give out an address that the certificate does not have, and ask
// for no password, as the Redis Operator's.
func TestSentinelsOverAReplication(t *testing.T) {
	c, data := given(t)
	primary := operatortest.Start(t, data, redisoperator.Config)
	sentinel := operatortest.StartSentinel(t, data, primary)
	at := redisoperator.Location{Mode: ticketstore.Sentinel, Address: fmt.Sprintf("localhost:%d", sentinel.Port), Master: "mymaster"}
	eventually(t, "the Sentinel sees the primary", func() error {
		_, err := open(t, c.Connection(embedded.Agent, at)).Read(t.Context(), ring)
		if !errors.Is(err, ticketstore.ErrNotFound) {
			return fmt.Errorf("read: %w", err)
		}
		return nil
	})
	publishes(t, c, at)
}

func TestAClusterWithWhatItIsGiven(t *testing.T) {
	c, data := given(t)
	node := operatortest.Start(t, data, redisoperator.Config, "cluster-enabled yes", "tls-cluster yes", "cluster-announce-hostname localhost", "cluster-preferred-endpoint-type hostname",
		fmt.Sprintf("cluster-port %d", storetest.FreePort(t)))
	if out, err := node.Do(data["password"], "CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	eventually(t, "a cluster", func() error {
		out, err := node.Do(data["password"], "CLUSTER", "INFO")
		return saying(out, err, "cluster_state:ok")
	})
	publishes(t, c, redisoperator.Location{Mode: ticketstore.Cluster, Address: fmt.Sprintf("localhost:%d", node.Port)})
}
