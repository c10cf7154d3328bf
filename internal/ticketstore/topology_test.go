package ticketstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// replication is what a primary and its replicas need of each other.
var replication = storetest.Config("tls-replication yes", "primaryuser admin", "primaryauth any", "replica-announce-ip localhost", "repl-diskless-sync-delay 0")

// eventually waits for servers to agree on something.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("%s: after %v still: %v", what, 2*patience, err)
}

func contains(text, want string) error {
	if !strings.Contains(text, want) {
		return fmt.Errorf("no %q in:\n%s", want, text)
	}
	return nil
}

// What the users of sentinels need at these.
const sentinelRights = "+ping +subscribe +sentinel|get-master-addr-by-name +sentinel|sentinels"

// sentinels starts a primary with a replica, and three sentinels over them. They
// have more patience with a primary than a busy machine needs.
func sentinels(t *testing.T) (primary, replica *storetest.Server, watch []*storetest.Server, connection func(embedded.Role) ticketstore.Connection) {
	t.Helper()
	primary = storetest.Start(t, replication)
	replica = primary.Peer(replication, storetest.Config(fmt.Sprintf("replicaof localhost %d", primary.Port())))
	for range 3 {
		watch = append(watch, primary.Peer(storetest.Arguments("--sentinel"), storetest.Users(
			"user operator reset on >for-sentinels allchannels "+sentinelRights, "user agent reset on >for-sentinels allchannels "+sentinelRights,
		), storetest.Config("tls-replication yes",
			"sentinel resolve-hostnames yes", "sentinel announce-hostnames yes", "sentinel announce-ip localhost",
			fmt.Sprintf("sentinel monitor main localhost %d 2", primary.Port()),
			"sentinel auth-user main admin", "sentinel auth-pass main any", "sentinel sentinel-user admin", "sentinel sentinel-pass any",
			"sentinel down-after-milliseconds main 120000", "sentinel failover-timeout main 2000")))
	}
	for _, s := range watch {
		eventually(t, "a sentinel knows the others", func() error {
			text := fmt.Sprint(s.Do("SENTINEL", "PRIMARY", "main"))
			return errors.Join(contains(text, "num-other-sentinels 2"), contains(text, "num-slaves 1"))
		})
	}
	return primary, replica, watch, func(role embedded.Role) ticketstore.Connection {
		c := storetest.Connection(role, watch...)
		c.Mode, c.Master, c.SentinelUsername, c.SentinelPassword = ticketstore.Sentinel, "main", string(role), "for-sentinels"
		return c
	}
}

func words(s string) []any {
	var all []any
	for _, w := range strings.Fields(s) {
		all = append(all, w)
	}
	return all
}

func TestAPrimaryIsFoundThroughSentinelsAlsoAfterAFailover(t *testing.T) {
	t.Parallel()
	primary, replica, watch, connection := sentinels(t)
	operator, agent := open(t, connection(embedded.Operator)), open(t, connection(embedded.Agent))
	f := follow(t, agent, ring)
	f.wakes(ring, "a connection")
	publish(t, operator, document(1, "one"))
	f.wakes(ring, "a new ring")
	reads(t, agent, 1, "one")
	eventually(t, "replication", func() error { return contains(fmt.Sprint(replica.Do("EXISTS", key)), "1") })

	killed := time.Now()
	primary.Stop()
	for _, s := range watch {
		s.Do("SENTINEL", "SET", "main", "down-after-milliseconds", 500)
	}
	eventually(t, "another primary", func() error { return contains(fmt.Sprint(replica.Do("ROLE")), "[master") })
	eventually(t, "the agent reads from it", func() error {
		_, err := agent.Read(t.Context(), ring)
		return err
	})
	t.Logf("read again %v after the primary was killed", time.Since(killed).Round(time.Millisecond))
	reads(t, agent, 1, "one")
	f.wakes(ring, "the other primary")
	for _, s := range watch {
		eventually(t, "every sentinel names it", func() error {
			return contains(fmt.Sprint(s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")), fmt.Sprint(replica.Port()))
		})
	}
	publish(t, operator, document(2, "two"))
	f.wakes(ring, "a new ring there")
	reads(t, agent, 2, "two")
	if err := operator.Publish(t.Context(), ring, document(1, "one")); !errors.Is(err, ticketstore.ErrNewer) {
		t.Errorf("an older ring: %v", err)
	}
}

func TestWhatIsWrongWithSentinels(t *testing.T) {
	t.Parallel()
	primary, replica, _, connection := sentinels(t)
	for name, tc := range map[string]struct {
		change func(*ticketstore.Connection)
		want   error
	}{
		"the name of the primary": {func(c *ticketstore.Connection) { c.Master = "other" }, ticketstore.ErrUnreachable},
		"their password":          {func(c *ticketstore.Connection) { c.SentinelPassword = "hunter2" }, ticketstore.ErrCredentials},
		"the primary's password":  {func(c *ticketstore.Connection) { c.Password = "hunter2" }, ticketstore.ErrCredentials},
		"the authority":           {func(c *ticketstore.Connection) { c.CA = nil }, ticketstore.ErrCertificate},
	} {
		t.Run(name, func(t *testing.T) {
			c := connection(embedded.Agent)
			tc.change(&c)
			_, err := open(t, c).Read(t.Context(), ring)
			is(t, err, tc.want, c)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has several lines", err)
			}
			for _, secret := range []string{"hunter2", "for-sentinels"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("error %q shows a password", err)
				}
			}
		})
	}
	t.Run("no primary at all", func(t *testing.T) {
		primary.Stop()
		replica.Stop()
		c := connection(embedded.Agent)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := open(t, c).Read(ctx, ring)
		is(t, err, ticketstore.ErrUnreachable, c)
	})
	t.Run("a replica in place of the primary", func(t *testing.T) {
		other := storetest.Start(t, replication)
		follower := other.Peer(replication, storetest.Config(fmt.Sprintf("replicaof localhost %d", other.Port())))
		eventually(t, "replication", func() error { return contains(fmt.Sprint(follower.Do("ROLE")), "connected") })
		c := follower.Connection(embedded.Operator)
		err := open(t, c).Publish(t.Context(), ring, document(1, "x"))
		is(t, err, ticketstore.ErrRefused, c)
		if !strings.Contains(err.Error(), "READONLY") {
			t.Errorf("error %v does not hand on what the server says", err)
		}
	})
}

// What users of a cluster need besides.
const clusterRights = "+cluster|slots"

func TestAClusterIsAStore(t *testing.T) {
	t.Parallel()
	var nodes []*storetest.Server
	for i := range 3 {
		bus := storetest.FreePort(t)
		node := storetest.Config("cluster-enabled yes", "cluster-announce-hostname localhost",
			"cluster-preferred-endpoint-type hostname", fmt.Sprintf("cluster-port %d", bus))
		if i == 0 {
			nodes = append(nodes, storetest.Start(t, node))
		} else {
			nodes = append(nodes, nodes[0].Peer(node))
			nodes[0].Do("CLUSTER", "MEET", "127.0.0.1", nodes[i].Port(), bus)
		}
		n := nodes[i]
		n.Do("CLUSTER", "ADDSLOTSRANGE", i*16384/3, (i+1)*16384/3-1)
		for _, role := range []embedded.Role{embedded.Operator, embedded.Agent} {
			n.Do(append([]any{"ACL", "SETUSER", string(role)}, words(clusterRights)...)...)
		}
	}
	for _, n := range nodes {
		eventually(t, "a cluster", func() error {
			text := fmt.Sprint(n.Do("CLUSTER", "INFO"))
			var named error
			if hosts := strings.Count(fmt.Sprint(n.Do("CLUSTER", "NODES")), ",localhost"); hosts != len(nodes) {
				named = fmt.Errorf("it knows the host names of %d nodes", hosts)
			}
			return errors.Join(contains(text, "cluster_state:ok"), contains(text, "cluster_known_nodes:3"), named)
		})
	}
	connection := func(role embedded.Role) ticketstore.Connection {
		c := storetest.Connection(role, nodes...)
		c.Mode = ticketstore.Cluster
		return c
	}
	operator, agent := open(t, connection(embedded.Operator)), open(t, connection(embedded.Agent))
	for i := range 12 { // of every node's slots
		ring := fmt.Sprintf("ring-%d", i)
		f := follow(t, agent, ring)
		f.wakes(ring, "a connection")
		for epoch := range uint64(2) {
			if err := operator.Publish(t.Context(), ring, document(epoch+1, "x")); err != nil {
				t.Fatal(err)
			}
			if d, err := agent.Read(t.Context(), ring); err != nil || d.Epoch != epoch+1 {
				t.Fatalf("%s: epoch %d, %v", ring, d.Epoch, err)
			}
		}
		f.wakes(ring, "a new ring")
		f.end()
		if err := operator.Publish(t.Context(), ring, document(1, "x")); !errors.Is(err, ticketstore.ErrNewer) {
			t.Errorf("%s: an older document: %v", ring, err)
		}
	}
	for i, n := range nodes {
		if held := fmt.Sprint(n.Do("DBSIZE")); held == "0" {
			t.Errorf("node %d holds no ring: the test shows less than it says", i)
		}
	}
	err := open(t, connection(embedded.Agent)).Publish(t.Context(), ring, document(1, "x"))
	is(t, err, ticketstore.ErrPermission, connection(embedded.Agent))
	for _, n := range nodes {
		n.Stop()
	}
	_, err = agent.Read(t.Context(), ring)
	is(t, err, ticketstore.ErrUnreachable, connection(embedded.Agent))
}
