"""Names, numbers and texts that other code relies on, and what importing the package does."""

import importlib
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import llm_datadist
import llm_datadist_v1
from llm_datadist import DataType, LLMRole, LLMStatusCode, Memtype, Placement, RegisterMemStatus

NEWER = """LLMClusterInfo LLMStatusCode LLMException LLMRole LlmConfig LLMConfig DataType Status
    CacheDesc CacheKey CacheKeyByIdAndIndex KvCache BlocksCacheKey LLMDataDist Placement
    RegisterMemStatus LayerSynchronizer TransferConfig TransferWithCacheKeyConfig Memtype MemInfo
    TensorDesc Tensor KvCacheManager""".split()
CLASSIC = """LLMClusterInfo LLMStatusCode LLMException LLMRole LlmConfig LLMConfig TensorDesc Tensor
    DataType Status KvCacheManager CacheDesc CacheKey CacheKeyByIdAndIndex KvCache BlocksCacheKey
    LLMDataDist Placement RegisterMemStatus LayerSynchronizer TransferConfig
    TransferWithCacheKeyConfig Memtype MemInfo""".split()

MEMBERS = {
    "LLMClusterInfo": "append_local_ip_info append_remote_ip_info local_ip_info_list "
    "remote_cluster_id remote_ip_info_list remote_role_type",
    "LLMException": "status_code",
    "LlmConfig": "buf_pool_cfg cluster_info deploy_res_path device_id enable_cache_manager "
    "enable_remote_cache_accessible enable_switch_role ge_options gen_options generate_options "
    "global_resource_config host_mem_pool_cfg link_retry_count link_total_time listen_ip_info "
    "local_comm_res mem_pool_cfg mem_utilization options output_max_size rdma_service_level "
    "rdma_traffic_class sync_kv_timeout transfer_backend",
    "Status": "is_ok status_code",
    "CacheDesc": "batch_dim batch_size data_type kv_tensor_format num_tensors placement "
    "seq_len_dim_index shape size update_dim",
    "CacheKey": "cluster_id model_id prefix_id prompt_cluster_id req_id",
    "CacheKeyByIdAndIndex": "batch_index cache_id cluster_id",
    "KvCache": "cache_desc cache_id create_cpu_cache per_device_tensor_addrs",
    "BlocksCacheKey": "cluster_id model_id prompt_cluster_id",
    "LLMDataDist": "cache_manager check_link_status cluster_id finalize init kv_cache_manager "
    "link_clusters llm_engine_instance unlink_clusters",
    "LayerSynchronizer": "synchronize_layer",
    "TransferConfig": "dst_addrs dst_cluster_id src_batch_index src_layer_range",
    "TransferWithCacheKeyConfig": "cache_key dst_layer_range src_batch_index src_layer_range",
    "MemInfo": "addr mem_type size",
    "TensorDesc": "dtype shape",
    "Tensor": "from_tensor_tuple numpy",
    "KvCacheManager": "allocate_blocks_cache allocate_cache check_cache_key deallocate_cache "
    "get_cache_tensors is_initialized pull_blocks pull_cache remove_cache_key",
}

SUBMODULES = {
    "llm_datadist.status": "LLMStatusCode LLMException Status code_2_status handle_llm_status "
    "raise_if_false raise_if_true",
    "llm_datadist.configs": "LLMRole LLMClusterInfo LlmConfig LLMConfig trans_str_ip",
    "llm_datadist.data_type": "DataType get_python_dtype_from_wrapper_dtype "
    "python_dtype_2_dwrapper_dtype dtype_to_np_dtype valid_np_dtypes np_dtype_to_dtype",
    "llm_datadist.v2.llm_types": "RegisterMemStatus Memtype MemInfo Placement CacheDesc "
    "BlocksCacheKey CacheKey CacheKeyByIdAndIndex KvCache LayerSynchronizer "
    "TransferWithCacheKeyConfig TransferConfig int_to_mem_status_dict check_layer_range",
    "llm_datadist.v2.llm_datadist": "LLMDataDist _shutdown_handler",
    "llm_datadist.v2.llm_utils": "parse_listen_ip_info calc_tensor_size is_valid_id is_invalid_id",
    "llm_datadist.utils.utils": "check_isinstance check_dict check_inner check_uint64 check_int64 "
    "check_int32 check_uint32 check_uint16 check_uint8 check_list_int32 check_list_int64 "
    "check_list_uint64 check_positive_or_set_default",
    "llm_datadist.utils.log": "get_logger info warn error _find_caller LOG_FORMAT",
}

STATUS_NUMBERS = {
    "LLM_SUCCESS": 0,
    "LLM_FAILED": 4294967295,
    "LLM_PARAM_INVALID": 1343270917,
    "LLM_WAIT_PROCESS_TIMEOUT": 1343270913,
    "LLM_KV_CACHE_NOT_EXIST": 1343270914,
    "LLM_REPEAT_REQUEST": 1343270915,
    "LLM_REQUEST_ALREADY_COMPLETED": 1343270916,
    "LLM_ENGINE_FINALIZED": 1343270918,
    "LLM_NOT_YET_LINK": 1343270919,
    "LLM_ALREADY_LINK": 1343270920,
    "LLM_LINK_FAILED": 1343270921,
    "LLM_UNLINK_FAILED": 1343270922,
    "LLM_NOTIFY_PROMPT_UNLINK_FAILED": 1343270923,
    "LLM_CLUSTER_NUM_EXCEED_LIMIT": 1343270924,
    "LLM_PROCESSING_LINK": 1343270925,
    "LLM_DEVICE_OUT_OF_MEMORY": 1343270926,
    "LLM_PREFIX_ALREADY_EXIST": 1343270927,
    "LLM_PREFIX_NOT_EXIST": 1343270928,
    "LLM_SEQ_LENOVERLIMIT": 1343270929,
    "LLM_NO_FREE_BLOCK": 1343270930,
    "LLM_BLOCKS_OUT_OF_MEMORY": 1343270931,
    "LLM_EXIST_LINK": 1343270936,
    "LLM_FEATURE_NOT_ENABLED": 1343270937,
    "LLM_TIMEOUT": 1343270938,
    "LLM_LINK_BUSY": 1343270939,
    "LLM_OUT_OF_MEMORY": 1343270940,
    "LLM_DEVICE_MEM_ERROR": 507053,
    "LLM_SUSPECT_REMOTE_ERROR": 507057,
    "LLM_UNKNOWN_ERROR": -1,
}

DATA_TYPES = {
    "DT_FLOAT": 0,
    "DT_FLOAT16": 1,
    "DT_BF16": 27,
    "DT_INT8": 2,
    "DT_INT16": 6,
    "DT_UINT16": 7,
    "DT_UINT8": 4,
    "DT_INT32": 3,
    "DT_INT64": 9,
    "DT_UINT32": 8,
    "DT_UINT64": 10,
    "DT_BOOL": 12,
    "DT_DOUBLE": 11,
    "DT_STRING": 13,
}


def numbers(enum):
    return {member.name: member.value for member in enum}


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def test_all_lists_the_names_in_the_order_of_the_interface():
    assert llm_datadist.__all__ == NEWER
    assert llm_datadist_v1.__all__ == CLASSIC
    assert llm_datadist.v2_list == NEWER[:-3]


@pytest.mark.parametrize("package", [llm_datadist, llm_datadist_v1])
def test_star_import_gives_every_name(package):
    names = {}
    exec(f"from {package.__name__} import *", names)
    assert set(package.__all__) <= set(names)
    for name in package.__all__:
        assert names[name] is getattr(llm_datadist, name)


@pytest.mark.parametrize(("cls", "members"), MEMBERS.items())
def test_members_exist(cls, members):
    for member in members.split():
        assert hasattr(getattr(llm_datadist, cls), member), member


@pytest.mark.parametrize(("module", "names"), SUBMODULES.items())
def test_submodule_paths_exist(module, names):
    for name in names.split():
        assert hasattr(importlib.import_module(module), name), name


def test_config_has_two_names():
    assert llm_datadist.LLMConfig is llm_datadist.LlmConfig
    assert llm_datadist.LLMConfig.__name__ == "LlmConfig"


@pytest.mark.parametrize("module", ["llm_datadist", "llm_datadist_v1", "llm_datadist.data_type"])
def test_unknown_attribute_has_the_usual_text(module):
    with pytest.raises(AttributeError, match="has no attribute"):
        _ = importlib.import_module(module).NonExistentAttr


def test_enum_numbers():
    assert numbers(LLMRole) == {"PROMPT": 1, "DECODER": 2, "MIX": 3}
    assert numbers(Placement) == {"HOST": 0, "DEVICE": 1}
    assert numbers(Memtype) == {"MEM_TYPE_DEVICE": 0, "MEM_TYPE_HOST": 1}
    assert numbers(RegisterMemStatus) == {"OK": 0, "PREPARING": 1, "FAILED": 2}
    assert numbers(LLMStatusCode) == STATUS_NUMBERS
    assert numbers(DataType) == DATA_TYPES
    assert [dtype.name for dtype in DataType] == list(DATA_TYPES)


@pytest.mark.parametrize(
    ("member", "text"),
    [
        (LLMRole.PROMPT, "LLMRole.PROMPT"),
        (Placement.HOST, "Placement.HOST"),
        (LLMStatusCode.LLM_TIMEOUT, "LLMStatusCode.LLM_TIMEOUT"),
        (DataType.DT_BF16, "DataType.DT_BF16"),
        (Memtype.MEM_TYPE_HOST, "Memtype.MEM_TYPE_HOST"),
    ],
)
def test_enum_texts_are_the_same_on_every_python(member, text):
    assert str(member) == text
    assert f"{member}" == text
    assert f"{member:>60}".strip() in (text, str(member.value))


def test_data_type_is_no_int_but_the_others_are():
    assert not isinstance(DataType.DT_INT8, int)
    assert LLMStatusCode.LLM_SUCCESS == 0
    assert f"{LLMStatusCode.LLM_TIMEOUT:x}" == "5010b01a"
    assert LLMStatusCode.LLM_TIMEOUT in [LLMStatusCode.LLM_TIMEOUT]


def test_constants_of_the_wrapper_modules():
    from llm_datadist import llm_datadist_wrapper, metadef_wrapper

    assert llm_datadist_wrapper.kSuccess == 0
    assert llm_datadist_wrapper.kLinKFailed == STATUS_NUMBERS["LLM_LINK_FAILED"]
    assert llm_datadist_wrapper.kLLMSuspectRemoteError == 507057
    constants = [value for name, value in vars(llm_datadist_wrapper).items() if name[0] == "k"]
    assert sorted(constants) == sorted(STATUS_NUMBERS.values())
    for name, number in DATA_TYPES.items():
        assert getattr(metadef_wrapper, name) == number


def test_numpy_tables():
    import numpy

    from llm_datadist import data_type

    assert len(data_type.dtype_to_np_dtype) == 14
    assert len(data_type.valid_np_dtypes) == 14
    assert len(data_type.np_dtype_to_dtype) == 13
    assert data_type.np_dtype_to_dtype[numpy.float16] is DataType.DT_FLOAT16
    assert data_type.dtype_to_np_dtype[DataType.DT_BF16] is numpy.float16
    assert data_type.get_python_dtype_from_wrapper_dtype(27) is DataType.DT_BF16
    assert data_type.python_dtype_2_dwrapper_dtype[DataType.DT_BF16] == 27
    for dtype, size in data_type.ELEMENT_BYTES.items():
        if dtype is not DataType.DT_STRING:
            assert numpy.dtype(data_type.dtype_to_np_dtype[dtype]).itemsize == size


def test_import_loads_no_numpy_and_sets_its_variable():
    done = python(
        "import os, sys; os.environ.pop('AUTO_USE_UC_MEMORY', None)\n"
        "import llm_datadist, llm_datadist_v1\n"
        "from llm_datadist import *\n"
        "print('numpy' in sys.modules, os.environ['AUTO_USE_UC_MEMORY'])"
    )
    assert done.stdout == "False 0\n", done.stderr


def test_import_keeps_a_variable_that_is_set():
    done = python(
        "import os, llm_datadist; print(os.environ['AUTO_USE_UC_MEMORY'])", AUTO_USE_UC_MEMORY="1"
    )
    assert done.stdout == "1\n", done.stderr


def test_first_import_may_be_in_another_thread():
    done = python(
        "import threading\n"
        "def work():\n"
        "    from llm_datadist import LLMDataDist, LLMRole\n"
        "    print(LLMDataDist(LLMRole.PROMPT, 2**64 - 1).cluster_id)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()"
    )
    assert done.stdout == f"{2**64 - 1}\n", done.stderr


def package_without_extension(folder):
    source = pathlib.Path(llm_datadist.__file__).resolve().parent
    shutil.copytree(
        source, folder / "llm_datadist", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    return str(folder)


def test_missing_extension_says_how_to_build_it(tmp_path):
    done = python("import llm_datadist", PYTHONPATH=package_without_extension(tmp_path))
    assert done.returncode != 0
    assert "ImportError: llm_datadist needs its extension module _datadist" in done.stderr
    assert "./dev test" in done.stderr


def test_free_threaded_interpreter_is_named_as_the_reason(tmp_path):
    code = (
        "import sysconfig; real = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda n: 1 if n == 'Py_GIL_DISABLED' else real(n)\n"
        "import llm_datadist"
    )
    done = python(code, PYTHONPATH=package_without_extension(tmp_path))
    assert done.returncode != 0
    assert "free-threaded Python is not supported" in done.stderr
