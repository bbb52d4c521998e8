"""Calls that an earlier version wrote down are run by this one, and their results are read."""

import base64
import os
import sys
import zlib

import pytest

from gridhand import NoRoom
from gridhand.library.pool.local_workers import program
from gridhand.worker import detached_call, encoded_values
from gridhand.worker.old_names import loads

# Made by the version before the modules moved, from functions of `__main__` and public objects.
# `CODE` is a function with its byte code, which only Python 3.11 can read.
CODE = (
    b"c-nPSU1%It6rSCk-HF+4vZ=;kAs`0AF2QY~w6(EakZlQcV2UwPQ0nFG%-y}yot@d<pM>fzL?MYO_o2`$1+n5&QHt0{9~"
    b"Am1;zJ636VV677eR_If(Si#HrXT(ogdD*=jYyYzVqGn{3k!!R{E%!HVXra<Dj;dunu80PB9DPwpMx6#T}w=Yc=CXi41z"
    b"7--$@=fUea<8iQIg_C=V)5L}@-bp$nK7>O`O;zlpsVXTn^WW_8t^s=tF1=oVN;5u%u@#!5)WUSHC&x-8+>K^F#M{72HC"
    b"^94LXGQYtCF`S%a1KOU_aOKFC|?xzeb?;$J^R^yu5b7AE$1yudmFl<#zP*)T;SM;jtgG0oFrYXoMm!d5-z|LB(iDHaM-"
    b"R%Kvp4^-6mn0P8oYkauNWhZH9Z)$Z(a!T0O@IPbBjRhaBac<01&-x>mN2qi9dKrN)JI>yP5}t@hp3N5%Qa#rYk3>FdP@"
    b"?eEtfEi64=Sc2v7`=vN_Yks?~>UU3nR{!$MgQaiZet7YRvpdC=9eYJLEM2V%7{CDPD<agxeh0S+LfTVf2*tQ-bfb1L3~"
    b"#8m!pK<ZOVaZ^VN&T4I!mYEpJ<fN|NlY$%G|~Czkj#&^Y+a@|JHP}QT}iC$zSN##eYs-d1LLHcRt6OmK)_`@BVb@i+{a"
    b"i)l*;Hye;0#Yq<rLP)pf}69FWl3qYNtBQ6;$fG!Mw2I;Y{?7>n(=(@zwUcI~4NrZ45Cy)Z!92^6~Pt;ipNDIqI@U&0JJ"
    b"+vN&W|Ke;dz@1axD!A106@TXF4+*E8FYa8h|A_Mjq9u0gtnukiKF4M6*{3_7~LyBVWdVFOBmO50{Wa(FCKR8(gxg<;4U"
    b"9<M`4p;cB3XR?{MgJ1*Cy0OY;>vUU4(&J<7OQxJRWsR*>mi@8>PcFxSm)>MDJH112|OC@s5VjncaHTe0-<>h|J}J+0~N"
    b"kP`Ie-SMVVd6m9NkME&A%09WTo*HO+#-p!!^emmDiynR5qvx(_S|4b+sp;h{y}5jXUQo{EUOEmay82<d-;Ag7W^#d<Pt"
    b"Na2?Pj^TB7%j0rkhia2)iVa0zkJ-q>%;@kcEH<>{Goho10LlG-u7HXVsnp{b8@J"
)
ARGUMENTS = (
    b"c-o~?O>5gg5VeWr#G!|hq|J5dr8WfN;G3b8653FNmtx4Vn3c4$7OT7JuGXf9Kyrxd!d^-yzo37#qYvCV>8-kGHF`7q=D"
    b"nF4@8Q>8t9pVLcW@1Tx3BqE%S{39<y?z6Wis|7rMch44Y>Vj1G$I6EqunL)5lPwtd2Nhd(-Xt9_zckD7P?q{@UEZ6x`8"
    b"n-aNOM(!I>>JF`H1KWI-j$CT0n!F167i52L84tQA7OswHCxRc!)Tx+GV$^nunFc4#%^wf2!nkw}LKirj6MB|wxN)x2>W"
    b";7;jOg>6ulSD*<%Ys~dx*C&}(hIIh$_zR8heN`aOk^y~_!%jfS&&i@f!B}`{)Jk;PAVj7H^BzB_0Nfrrr<0lDj}mYg5g"
    b"4cBW%uuB&(E5!iZEcuWqWCAwn2p^BUtr(=N;Y;Yt;+U8y0JD<u~XNn-!0SG$xRUPJn9GPITUbXU*b%t)4-R24v7ceapf"
    b"B_Vx<$Dlf*8R%Y{VIlYSf2Cq3Xl*v`=&3kBf4CMDa0@oH-^&s4=9=XxxZ_8oQb)bZ>Rq)=k>KGhu`()zlBS%tcJgFCs>"
    b"E_WJ~Y7X6sPaqL1;x*AR!#oj90$~C=o67pWBRS%v&-oSS%u-L7P$@8ncEFX^JH#{AEuqiN9o-Ef=AaDOS#6(7HIe={)r"
    b"6t!p{20)P+evfJLD)oJW%R>iKt{|!{$WB&"
)
BY_NAME = (
    b"c-m`Vo$Ag20X^dBMVToXiFqk{<@rU~sYQBenRzLhdFfMnxYJ7Wl1no4^WyW<rc9pF!(U#MSyGak7oVC~l#`iSG^K|*F("
    b"qY6+mxUwdH{DG9+U"
)
EXPLANATION = (
    b"c-pN|K}*9h6mE5M4rNS1MPZPeD`;8S&C3o$rj!*K>?o49=@M3&nY8L<pofBoTx8Fm=>IU?=H@*6F8T8EzW2TN<+c3zuw"
    b"~3cosI+xDNaH=;DXrXWfJ2Ar;I0{_O5^3W?;R+Jv7zvCPR?NjL1}istguzU3&7jRPsy&MAudaD?EcKsO?~qLBEyB90uT"
    b"dR`Ww=J<GF*Pb-UVw662?fF3T=uHjj(=^E5fRgZ_HCwMklOP6CDj3v-o4ytpT$SjIjz(|s!?%nVTJ##T80#PiHW4BreK"
    b"VcSQKPDF_#d3^_t(cw{we>6H;F`+B`Xqi1T5;DSSoE2cD?!@$51C%)YdDWWM;&e27ic&t%-iYC(OSEv%r+>~0oqt~P-l"
    b"fe#0ApUA_uWVrUZwGN2m=ePxq(VqJI7S$M?0r#RTt`-nDYW<B%nz->a4c=P9TXb}k)FTeew#pKBIe*C4+A4U4wm#s"
)


def unpacked(text):
    return zlib.decompress(base64.b85decode(text))


def call_of(folder, code, arguments):
    """Run the call as the command of a queued job would; return its result."""
    file = detached_call.write_call(str(folder), [*sys.path, str(folder)], code, arguments)
    os.spawnv(os.P_WAIT, sys.executable, program("--once", file))
    folder_fd = os.open(folder, os.O_RDONLY)
    how, data = detached_call.read_result(folder_fd)
    os.close(folder_fd)
    assert how == detached_call.RETURNED, data
    return loads(data)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="byte code of Python 3.11")
def test_a_function_sent_by_value(tmp_path):
    result = call_of(tmp_path, unpacked(CODE), unpacked(ARGUMENTS))
    twice, needs, request, refused, graph, given, resources = result
    assert (twice, str(needs.resources)) == (42, "cpu=2")
    assert (str(request.resources), given, str(resources)) == ("cpu=1 gpu=0.5", "value", "cpu=1")
    assert isinstance(refused, NoRoom)
    assert "worker has 1.00 available, task requires 3.00" in str(refused.refusal.reasons())
    assert [function.id for function in graph] == ["f"]


def test_a_task_sent_by_its_name(tmp_path):
    (tmp_path / "written_earlier.py").write_text(
        "from gridhand import task\n@task\ndef add(a, b):\n    return a + b\n"
    )
    arguments = bytes(encoded_values.dumps(((1,), {"b": 2})))
    assert call_of(tmp_path, unpacked(BY_NAME), arguments) == 3


def test_a_result_of_objects_that_have_moved():
    why = loads(unpacked(EXPLANATION))
    assert "worker has 1.00 available, task requires 3.00" in str(why)


def test_what_the_user_lacks_is_told_as_it_is():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        loads(b"cno_such_module\nname\n.")
    with pytest.raises(ModuleNotFoundError, match=r"gridhand\.no_such"):
        loads(b"cgridhand.no_such\nname\n.")
