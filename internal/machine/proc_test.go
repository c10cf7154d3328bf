package machine

import (
	"os"
	"testing"
)

func TestTheMachinesTimeIsThatOfAllItsCPUs(t *testing.T) {
	const stat = "cpu  100 20 30 1000 40 5 6 7 50 2\ncpu0 50 10 15 500 20 2 3 3 25 1\nintr 1 2 3\n"
	total, idle, err := ParseStat(stat)
	if total != 1208 || idle != 1040 || err != nil { // a guest's time is in user already
		t.Errorf("%d, %d, %v", total, idle, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3\n", "cpu 1 2 3 x 5 6 7 8\n"} {
		if _, _, err := ParseStat(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	here, err := os.ReadFile(StatFile)
	if err != nil {
		t.Fatal(err)
	}
	if total, idle, err := ParseStat(string(here)); err != nil || total <= 0 || idle < 0 || idle > total {
		t.Errorf("this machine: %d, %d, %v", total, idle, err)
	}
}

func TestSegmentsThatWereSentAgainWereSent(t *testing.T) {
	const snmp = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm RtoMin MaxConn InSegs OutSegs RetransSegs InErrs\nTcp: 1 200 -1 500 990 10 0\nUdp: InDatagrams\nUdp: 7\n"
	const netstat = "TcpExt: SyncookiesSent TCPDSACKRecv\nTcpExt: 0 3\nIpExt: InNoRoutes\nIpExt: 0\n"
	if sent, again, err := ParseTCP(snmp, netstat); sent != 1000 || again != 7 || err != nil {
		t.Errorf("%d, %d, %v", sent, again, err)
	}
	// A network may duplicate what was sent once.
	if _, again, err := ParseTCP(snmp, "TcpExt: TCPDSACKRecv\nTcpExt: 30\n"); again != 0 || err != nil {
		t.Errorf("more that were needless than were sent again: %d, %v", again, err)
	}
	for _, bad := range [][2]string{{"", netstat}, {"Tcp: OutSegs\nTcp: 1\n", netstat}, {"Tcp: OutSegs RetransSegs\nTcp: 1 x\n", netstat},
		{snmp, ""}, {snmp, "TcpExt: SyncookiesSent\nTcpExt: 0\n"}, {snmp, "TcpExt: TCPDSACKRecv\nTcpExt: -\n"}} {
		if _, _, err := ParseTCP(bad[0], bad[1]); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	here, err := os.ReadFile(SNMPFile)
	if err != nil {
		t.Fatal(err)
	}
	too, err := os.ReadFile(NetstatFile)
	if err != nil {
		t.Fatal(err)
	}
	if sent, again, err := ParseTCP(string(here), string(too)); err != nil || sent < again {
		t.Errorf("here: %d, %d, %v", sent, again, err)
	}
}
